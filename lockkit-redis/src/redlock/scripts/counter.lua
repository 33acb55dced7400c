-- The counter of a lock.
--
-- KEYS 2 the counter: "<number>", or "<number> <claim> <n>" once the nth proposal of that claim was stored here
local token_counter = KEYS[2]

-- How long the floor is kept at most, in us: half of the shortest time that any counter is kept.
local FLOOR_US_MAX = 500000

-- A node that has lost its data has lost its marker too, and must not count.
local is_marked, highest = fields[1] == marker, number_in(fields[2])

-- At least as high as every counter that the node has dropped by now, because counters are kept longer than this value.
-- It is not simply the highest counter: a lock that is new here should get the counter that its client proposes, the
-- same at all nodes.
local function floor()
  local taken = redis.call('HMGET', node, 'floor', 'floor_at')
  local now, taken_at = clock(), number_in(taken[2])
  if now < taken_at or now - taken_at > FLOOR_US_MAX then
    redis.call('HSET', node, 'floor', digits(highest), 'floor_at', digits(now))
    return highest
  end
  return number_in(taken[1])
end

-- Returns the counter, and the rest of its text.
local function counter()
  local text = redis.pcall('GET', token_counter)
  local number = number_in(text)
  if number > 0 then
    return number, ''
  end
  local first, rest = string.match(type(text) == 'string' and text or '', '^(%d+)( %x+ %d+)$')
  number = number_in(first)
  return number > 0 and number or floor(), rest or ''
end

-- Sets the counter to a value that is not below the last one. It is kept for `keep` ms.
local function raise(number, rest, keep)
  local text = digits(number)
  redis.call('SET', token_counter, text .. rest, 'PX', keep)
  if number > highest then
    redis.call('HSET', node, 'highest', text)
  end
end

