-- Returns the state of a claim that was queued. Sent when its client was notified that it is next, when the lock may
-- have expired, and when heartbeats fail. Never mints a token for a claim that has one, and never puts a claim back
-- into the queue.
--
-- ARGV 5 the channel of observers, if the claim takes part in an election
-- Returns the token if the claim holds the lock. Otherwise {'queued', PTTL of the lock in ms, last token},
-- {'unserved', ...} when the request must be repeated, or {'gone', 0}.
local state, token = serve()
if state == 'mine' then
  return hold(token, ARGV[5])
end
if queued() then
  return extend_wait(state)
end
return { 'gone', 0 }
