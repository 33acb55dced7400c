-- Who holds the lock at this node. Read-only. Values of other programs never cause an error.
--
-- KEYS 2 the lock, 3 its counter, 4 its metadata
-- ARGV 2 the maximum length of metadata that is returned, in bytes
--      3 'pttl' if an operator asks, who may have more rights
-- Returns {value of the lock, counter, metadata, 1 if its claim has metadata, PTTL of the lock in ms or -1}; '' for what
-- is missing, and '?' for a value that no lockkit client writes; nothing from a node that has lost its data.
local lock, fence, metadata = KEYS[2], KEYS[3], KEYS[4]
if not is_marked then
  return {}
end
local value = ''
if redis.call('EXISTS', lock) == 1 then
  value = string.match(value_of(lock) or '', '^%x+$') or '?'
end
local description, is_described = '', 0
local length = redis.pcall('HSTRLEN', metadata, value)
if type(length) == 'number' and length > 0 then
  is_described = 1
  if length <= tonumber(ARGV[2]) then
    description = redis.call('HGET', metadata, value) or ''
  end
end
local pttl = ARGV[3] == 'pttl' and redis.pcall('PTTL', lock)
return { value, number_in(redis.pcall('GET', fence)), description, is_described, type(pttl) == 'number' and pttl or -1 }
