-- KEYS and ARGV as in lock.lua, and
--
-- ARGV 3 how long the token counter outlives its last use, in ms

-- Frees the lock, which nobody waits for. From now on the counter outlives its last use by its own time.
local function free()
  redis.call('DEL', KEYS[1])
  if ARGV[3] ~= ARGV[2] then
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
  end
end

