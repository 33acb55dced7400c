-- KEYS 1 the lock
-- ARGV 1 the claim
local lock, claim = KEYS[1], ARGV[1]

