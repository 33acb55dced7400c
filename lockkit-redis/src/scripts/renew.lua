-- The beat of held locks: starts the lifetime of each anew that is held as its client believes, token included (a
-- failover may have lost a grant and granted the same claim again). Never brings a lock back. Names the locks' keys
-- only: during the migration of a cluster's slot a script must not name a key that is not there.
--
-- KEYS the locks
-- ARGV 1 the ttl in ms
--      1 + n the value that the nth lock must have
-- Answers 1 or 0 for each lock.
local answers = {}
for n, lock in ipairs(KEYS) do
  answers[n] = 0
  if value_of(lock) == ARGV[1 + n] then
    answers[n] = redis.call('PEXPIRE', lock, ARGV[1])
  end
end
return answers
