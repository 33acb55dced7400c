-- Sets the node's marker to ARGV 1 if it is ARGV 2 ('' for none). Its counters are then at least ARGV 3, and ARGV 4 are
-- the names of the nodes of its set. ARGV 5 is how long records of this set last, in us, which the node may have lost.
--
-- Returns the state of the node as it is now.
if (redis.call('HGET', node, 'marker') or '') == ARGV[2] then
  if number_in(ARGV[3]) > highest() then
    redis.call('HSET', node, 'highest', ARGV[3])
  end
  -- The floor is computed again from the highest counter.
  redis.call('HDEL', node, 'floor', 'floor_at')
  if number_in(ARGV[5]) > 0 then
    redis.call('HSET', node, 'lost', ARGV[3], 'lost_until', digits(extend_records(number_in(ARGV[5]))))
  end
  redis.call('HSET', node, 'marker', marker, 'names', ARGV[4])
end
return state()
