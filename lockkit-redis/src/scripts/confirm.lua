-- Returns the state of a claim that was queued. Sent when its client was notified that it is next, when the lock may
-- have expired, and when heartbeats fail. Never mints a token for a claim that has one, and never puts a claim back
-- into the queue.
--
-- ARGV 6 the client
--      7 the channel of observers, if the claim takes part in an election
-- Returns {'granted', token}, {'queued', PTTL of the lock in ms, last token}, {'unserved', ...} when the request must be
-- repeated, or {'gone', 0}.
local state, token = serve()
if state == 'mine' then
  return hold(token, ARGV[7])
end
if queued() then
  return extend_wait(ARGV[6], state)
end
return { 'gone', 0 }
