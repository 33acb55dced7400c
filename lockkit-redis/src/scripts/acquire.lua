-- Takes the lock for a claim, or puts the claim into the queue. A repeated request finds what an earlier one has done.
-- `take` has served it already if neither the lock nor a queue exists.
--
-- ARGV 5 'wait' or 'try'
--      6 the claim's metadata
--      7 the channel of observers, if the claim takes part in an election
-- Returns the token if the claim holds the lock. Otherwise {'queued', PTTL of the lock in ms, last token},
-- {'busy', PTTL of the lock in ms} in mode 'try', or {'unserved', ...} when the request must be repeated (by `confirm` if
-- the claim waits).
local mode, description, observers = ARGV[5], ARGV[6], ARGV[7]

local state, token = serve()
if state == 'mine' then
  return hold(token, observers)
end
if state == 'free' then
  token = grant(claim, ttl, client, description)
  notify_observers(observers)
  return token
end
if mode == 'try' then
  return { state == 'unserved' and state or 'busy', redis.call('PTTL', lock) }
end
if queued() then
  return extend_wait(state)
end
local last = read('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2]
redis.call('ZADD', queue, (tonumber(last) or 0) + 1, claim)
return extend_wait(state, '@' .. claim, description)
