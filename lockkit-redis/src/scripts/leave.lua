-- Ends a pinned hold, whose lock expires at the end of the pin: nobody is granted it before. Lengthens a lifetime that is
-- too short, too: a failover may have lost the pin. A late copy keeps the lock longer, at most by its own delay.
--
-- ARGV 3 the rest of the pin, in ms
-- Returns whether the claim held the lock (1 or 0).
local rest = ARGV[3]
if lock_state() ~= 'mine' then
  return 0
end
local left = redis.call('PTTL', lock)
if left ~= tonumber(rest) then
  -- Waiters expect the end that their last check has found. The first one re-checks at once, and again when the lock
  -- expires; its heartbeat would find the new end later.
  local head = read('ZRANGE', queue, 0, 0)[1]
  local client = head and string.match(read('HGET', lapses, head) or '', ':(%x+)$')
  redis.call('PEXPIRE', lock, rest)
  if client then
    redis.pcall('PUBLISH', channel .. client, head)
  end
end
return 1
