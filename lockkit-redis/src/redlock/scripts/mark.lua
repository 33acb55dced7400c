-- Makes the text of ARGV 1 the marker of the node, if its marker is that of ARGV 2 ('' for none); its counters are then
-- at least that of ARGV 3, and ARGV 4 is what the nodes of its set are called.
--
-- Answers {marker, highest counter, names} as they are now.
if (redis.call('HGET', node, 'marker') or '') == ARGV[2] then
  if number_in(ARGV[3]) > highest() then
    redis.call('HSET', node, 'highest', ARGV[3])
  end
  -- The floor is taken anew.
  redis.call('HDEL', node, 'floor', 'floor_at')
  redis.call('HSET', node, 'marker', marker, 'names', ARGV[4])
end
return state()
