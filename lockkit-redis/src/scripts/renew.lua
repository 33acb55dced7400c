-- The heartbeat of held locks: restarts the lifetime of each lock that has the claim and the token of its client's
-- grant. (After a failover that lost the grant, the same claim may have been granted again.) Never restores a lock.
-- Shortens a lifetime that is too long: the server's clock may have been put back. Names only the locks' keys: while a
-- cluster's slot is moving, a script must not name a key that is not there.
--
-- KEYS the locks
-- ARGV 1 the ttl in ms
--      1 + n the value that the nth lock must have
--      1 + #KEYS + n the lifetime of the nth lock in ms instead of the ttl; for none, or for all
-- Returns 1 or 0 for each lock.
local answers = {}
for n, lock in ipairs(KEYS) do
  answers[n] = 0
  if value_of(lock) == ARGV[1 + n] then
    answers[n] = redis.call('PEXPIRE', lock, ARGV[1 + #KEYS + n] or ARGV[1])
  end
end
return answers
