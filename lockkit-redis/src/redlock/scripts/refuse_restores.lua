-- Precedes a release if a restore was sent for the claim: raises the counter above its token, even if another claim has
-- the lock or none, so that a restore that comes later finds it too high.
--
-- ARGV 3 the token
--      4 how long the counter outlives its last use, in ms
if is_marked then
  -- Needs no memory: at `maxmemory` a server refuses SET as the first write of a script, but not after another write.
  redis.call('PEXPIRE', token_counter, ARGV[4])
  local last, rest = counter()
  raise(math.max(last, number_in(ARGV[3]) + 1), rest, ARGV[4])
end

