-- How a claim stands that was queued: sent when its client was notified that it is next, when the holder's time is over,
-- and when heartbeats fail. Never mints a token for a claim that has one, and never puts a claim back into the queue.
--
-- ARGV 6 the client
-- Answers {'granted', token}, {'queued', PTTL of the lock in ms}, {'unserved', _} when the same has to be asked again, or
-- {'gone', 0}.
local state, token = serve()
if state == 'mine' then
  return hold(token)
end
if queued() then
  return stay(ARGV[6], state)
end
return { 'gone', 0 }
