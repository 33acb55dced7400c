-- Sets the node's marker to ARGV 1 if it is ARGV 2 ('' for none). Its counters are then at least ARGV 3, and ARGV 4 are
-- the names of the nodes of its set.
--
-- Returns {marker, highest counter, names} as they are now.
if (redis.call('HGET', node, 'marker') or '') == ARGV[2] then
  if number_in(ARGV[3]) > highest() then
    redis.call('HSET', node, 'highest', ARGV[3])
  end
  -- The floor is computed again from the highest counter.
  redis.call('HDEL', node, 'floor', 'floor_at')
  redis.call('HSET', node, 'marker', marker, 'names', ARGV[4])
end
return state()
