-- Sets the node's marker to the last argument if it is ARGV 1 ('' for none). Its counters are then at least ARGV 2, and
-- ARGV 3 are the names of the nodes of its set. ARGV 4 is how long records of this set last, in us, which the node may
-- have lost.
--
-- Returns the state of the node as it is now.
if (redis.call('HGET', node, 'marker') or '') == ARGV[1] then
  if number_in(ARGV[2]) > highest() then
    redis.call('HSET', node, 'highest', ARGV[2])
  end
  -- The floor is computed again from the highest counter.
  redis.call('HDEL', node, 'floor', 'floor_at')
  if number_in(ARGV[4]) > 0 then
    redis.call('HSET', node, 'lost', ARGV[2], 'lost_until', digits(extend_records(number_in(ARGV[4]))))
  end
  redis.call('HSET', node, 'marker', marker, 'names', ARGV[3])
end
return state()
