-- Functions about a claim that may wait.
--
-- ARGV 3 its ttl in ms
--      4 its client
local ttl, client = ARGV[3], ARGV[4]

-- Serves the queue if the lock is free, and returns who has the lock then; 'unserved' if the next waiter was not found
-- yet.
local function serve()
  local state, token = lock_state()
  if state ~= 'free' then
    return state, token
  end
  local head, more = handoff()
  if head then
    return head == claim and 'mine' or 'others', more
  end
  return more and 'unserved' or 'free'
end

-- Returns whether the claim waits: it is in the queue, and has an entry in `lapses`. An operator may have removed either;
-- the claim's withdrawal removes the rest.
local function queued()
  return read('HEXISTS', lapses, claim) == 1 and read('ZSCORE', queue, claim)
end

-- Extends the wait of the claim: it lapses one ttl from now. `state` is the answer of `serve`; metadata, if any,
-- are stored with it.
--
-- The last part of the answer is not below any token so far, and below every later one: of this server by the counter,
-- and of one that takes its place by the clock. So the client knows what was granted after this answer.
--
-- A server at its memory limit (maxmemory) refuses HSET as the first write of a script, but not PEXPIRE. After the
-- first write it refuses nothing. So PEXPIRE comes first, and waiters keep their entries.
local function extend_wait(state, ...)
  redis.call('PEXPIRE', queue, linger)
  redis.call('HSET', lapses, claim, digits(now() + ttl * 1000) .. ':' .. ttl .. ':' .. client, ...)
  redis.call('PEXPIRE', lapses, linger)
  local last = math.max(counted(counter), now())
  return { state == 'unserved' and state or 'queued', redis.call('PTTL', lock), last }
end

-- Restarts the lifetime of the lock, which the claim holds. Never shortens it: the hold may be pinned for longer, and
-- this may be a late copy of the request that was granted the lock. Writes also if the lifetime is the same: where
-- replicas must acknowledge a grant, they acknowledge this write.
local function hold(token, observers)
  if redis.call('PTTL', lock) <= tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
  if observers then
    -- Candidates confirm now and then while they lead, so that what they propose does not expire.
    redis.call('PEXPIRE', counter, linger)
  end
  notify_observers(observers)
  return token
end

