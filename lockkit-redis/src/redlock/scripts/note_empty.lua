-- The state of this node. If it has no marker, ARGV 1 becomes its marker: while that is there, the node has not been
-- emptied again.
--
-- Returns the state of the node.
redis.call('HSETNX', node, 'marker', marker)
return state()
