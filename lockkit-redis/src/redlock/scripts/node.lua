-- What the scripts of a node share.
--
-- KEYS 1 the node, a hash:
--        marker   "ready <longest ttl in ms> <set> <number>/<nodes>" if the node counts; "preparing ..." between the
--                 two steps of the set-up; "empty <random>" while a client waits before it brings the node back
--        names    the names of the nodes of the set at its set-up, in their order, one a line
--        highest  the highest counter of all locks of this node
--        floor    the value of "highest" a moment ago
--        floor_at when that was, by the server's clock in us
--        records_until  when all records of this set have expired, by the server's clock in us
--        lost           the node has lost its data: it may lack the records of grants up to this token
--        lost_until     when those have expired, by the server's clock in us
-- ARGV 1 the marker that the node must have
local node, marker = KEYS[1], ARGV[1]

-- Larger numbers are not exact in Lua, and no counter ever gets there.
local COUNTER_MAX = 9007199254740991

-- How long the floor is kept at most, in us: half of the shortest time that any counter is kept.
local FLOOR_US_MAX = 500000

-- Other ways of formatting use an exponent for large numbers.
local function digits(number)
  return string.format('%.0f', number)
end

-- The whole number in a reply; 0 for what no lockkit client has written.
local function number_in(reply)
  local number = type(reply) == 'string' and tonumber(reply)
  if number and number >= 0 and number < COUNTER_MAX then
    return math.floor(number)
  end
  return 0
end

-- A node that has lost its data has lost its marker too, and must not count.
local is_marked = redis.call('HGET', node, 'marker') == marker

local function highest()
  return number_in(redis.call('HGET', node, 'highest'))
end

-- The server's clock in us.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- How long records of this set last, in us; 0 if there are none.
local function records_last()
  return math.max(number_in(redis.call('HGET', node, 'records_until')) - clock(), 0)
end

-- Records last for this time from now, or for longer. Returns when they have expired.
local function extend_records(us)
  local records_until = clock() + math.max(us, records_last())
  redis.call('HSET', node, 'records_until', digits(records_until))
  return records_until
end

-- The state of the node.
local function state()
  local names = redis.call('HGET', node, 'names') or ''
  return { redis.call('HGET', node, 'marker') or '', highest(), names, records_last() }
end

-- At least as high as every counter that the node has dropped by now, because counters are kept longer than this value.
-- It is not simply the highest counter: a lock that is new here should get the counter that its client proposes, the
-- same at all nodes.
local function floor()
  local now = clock()
  local taken_at = number_in(redis.call('HGET', node, 'floor_at'))
  if now < taken_at or now - taken_at > FLOOR_US_MAX then
    redis.call('HSET', node, 'floor', digits(highest()), 'floor_at', digits(now))
  end
  return number_in(redis.call('HGET', node, 'floor'))
end

-- The counter of a lock.
local function counter_of(fence)
  local counter = number_in(redis.pcall('GET', fence))
  return counter > 0 and counter or floor()
end

-- Sets the counter of a lock to a value that is not below the last one.
local function raise(fence, counter, keep)
  redis.call('SET', fence, digits(counter), 'PX', keep)
  if counter > highest() then
    redis.call('HSET', node, 'highest', digits(counter))
  end
end

