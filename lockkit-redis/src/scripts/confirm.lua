-- How a claim stands that was queued: sent when its client was told that it is next, when the holder's time is over, and
-- now and then. Never mints a token for a claim that has one, and never puts a claim back into the queue.
--
-- ARGV 6 the client
-- Answers {'granted', token}, {'queued', PTTL of the lock in ms} or {'gone', 0}.
local state, token = serve()
if state == 'mine' then
  return hold(token)
end
if queued() then
  return stay(ARGV[6])
end
return { 'gone', 0 }
