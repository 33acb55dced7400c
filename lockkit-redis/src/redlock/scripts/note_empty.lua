-- What this node knows of itself. Where it has no marker, the text of ARGV 2 becomes its marker: as long as it is there, the
-- node has not been emptied again.
--
-- Answers {marker, highest counter, names}.
redis.call('HSETNX', node, 'marker', ARGV[2])
return state()
