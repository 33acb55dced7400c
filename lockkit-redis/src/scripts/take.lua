-- The short way of `acquire`: neither the lock nor a queue exists.
if redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0 then
  local token = grant(ARGV[1], ARGV[2], ARGV[6], ARGV[8])
  notify_observers(ARGV[9])
  return { 'granted', token }
end

