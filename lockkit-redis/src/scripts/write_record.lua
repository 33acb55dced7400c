-- Writes the record of a lock, unless the grant does not hold the lock (any more).
--
-- KEYS 1 the lock
--      2 the record
-- ARGV 1 the value that the lock must have
--      2 the record
--      3 how long to keep it, in ms
-- Returns whether the grant holds the lock (1 or 0).
if value_of(KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 1
