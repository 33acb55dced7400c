-- Refuses the rest of a script unless KEYS[1] has the value ARGV[1].
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('FENCED this grant does not hold the lock (any more)')
end
