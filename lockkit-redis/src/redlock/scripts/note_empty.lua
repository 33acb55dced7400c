-- What this node has for a marker, and its highest counter. Where it has none, the text of ARGV 2 becomes its marker: as
-- long as it is there, the node has not been emptied again.
--
-- Answers {marker, highest counter}.
redis.call('HSETNX', node, 'marker', ARGV[2])
return { redis.call('HGET', node, 'marker'), highest() }
