-- The short way of `acquire`: neither the lock nor a queue exists.
if redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0 then
  local token = grant(ARGV[1], ARGV[3], ARGV[4], ARGV[6])
  notify_observers(ARGV[7])
  return token
end

