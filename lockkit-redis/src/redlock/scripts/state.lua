-- What a node reports about itself, and how long its records last.

local function highest()
  return number_in(redis.call('HGET', node, 'highest'))
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

