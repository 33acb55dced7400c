-- Who holds the lock at this node. Writes nothing. What other programs have written there is shown as far as it goes, and
-- is never an error.
--
-- KEYS 2 the lock, 3 its counter, 4 what its holder says about itself
-- ARGV 2 bytes of metadata that are shown, at most
-- Answers {value of the lock, counter, metadata}; '' for what is not there, and '?' for a value that no client of ours
-- writes.
local lock, fence, metadata = KEYS[2], KEYS[3], KEYS[4]
if not is_marked then
  return { '', 0, '' }
end
local value = ''
if redis.call('EXISTS', lock) == 1 then
  value = string.match(value_of(lock) or '', '^%x+$') or '?'
end
local description = ''
local length = redis.pcall('HSTRLEN', metadata, value)
if type(length) == 'number' and length <= tonumber(ARGV[2]) then
  description = redis.call('HGET', metadata, value) or ''
end
return { value, number_in(redis.pcall('GET', fence)), description }
