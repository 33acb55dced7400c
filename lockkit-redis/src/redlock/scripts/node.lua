-- What the scripts of one node share.
--
-- KEYS 1 the node, a hash:
--        marker   "ready <longest ttl in ms> <set> <number>/<nodes>" where locks count; "preparing ..." between the two
--                 steps of the set-up; "empty <random>" where a client has found none of them and waits
--        names    what the nodes of the set were called when it was set up, in their order, one a line
--        highest  the highest counter of all locks of this node
--        floor    what that was a moment ago
--        floor_at when that was, by the server's clock in us
-- ARGV 1 the marker that the node must have
local node, marker = KEYS[1], ARGV[1]

-- Numbers above are not exact in Lua, and no counter ever is.
local COUNTER_MAX = 9007199254740991

-- Longest time for which the floor is kept, in us: half of the shortest time for which any counter is.
local FLOOR_US_MAX = 500000

-- Numbers of this size are written without an exponent only by this.
local function digits(number)
  return string.format('%.0f', number)
end

-- The whole number in a reply; 0 for what no client of ours has written.
local function number_in(reply)
  local number = type(reply) == 'string' and tonumber(reply)
  if number and number >= 0 and number < COUNTER_MAX then
    return math.floor(number)
  end
  return 0
end

-- A node that has lost its data has lost its marker with them: whatever it says then, it must not count.
local is_marked = redis.call('HGET', node, 'marker') == marker

local function highest()
  return number_in(redis.call('HGET', node, 'highest'))
end

-- What the node knows of itself.
local function state()
  return { redis.call('HGET', node, 'marker') or '', highest(), redis.call('HGET', node, 'names') or '' }
end

-- What no counter was above that the store has dropped by now: counters are kept for longer than this value is. It is
-- not quite the highest: a lock that is new here shall get the counter that its client proposes, at all nodes the same.
local function floor()
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
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

