-- What the scripts share that read the node's own hash.
--
-- KEYS last: the node, a hash:
--        marker   "ready <longest ttl in ms> <set> <number>/<nodes>" if the node counts; "preparing ..." between the
--                 two steps of the set-up; "empty <random>" while a client waits before it brings the node back
--        names    the names of the nodes of the set at its set-up, in their order, one a line
--        highest  the highest counter of all locks of this node
--        floor    the value of "highest" a moment ago
--        floor_at when that was, by the server's clock in us
--        records_until  when all records of this set have expired, by the server's clock in us
--        lost           the node has lost its data: it may lack the records of grants up to this token
--        lost_until     when those have expired, by the server's clock in us
-- ARGV last: the marker that the node must have
local node, marker = KEYS[#KEYS], ARGV[#ARGV]

-- A node that has lost its data has lost its marker too, and must not count.
local function has_marker()
  return redis.call('HGET', node, 'marker') == marker
end

-- The server's clock in us.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

