-- The short way of `release`: the claim holds the lock, and nobody waits.
-- Texts instead of numbers, as in `counted`.
local value = redis.pcall('GETRANGE', KEYS[1], '0', '63')
local is_mine = type(value) == 'string' and string.match(value, '^(%x+):%d+$') == ARGV[1]
if is_mine and redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 then
  free()
  notify_observers(ARGV[4])
  return 1
end

