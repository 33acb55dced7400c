-- Who holds the lock at this node. Read-only. Values of other programs never cause an error.
--
-- KEYS 1 the lock, 2 its counter
-- ARGV 1 the maximum length of metadata that is returned, in bytes
--      2 'pttl' if an operator asks, who may have more rights
-- Returns {claim, counter, metadata, 1 if the lock has metadata, PTTL of the lock in ms or -1}; '' for what is missing.
-- Instead of a claim: the value of another program if that is a hexadecimal number, and '?' for any other one. Nothing
-- from a node that has lost its data.
local lock, token_counter, metadata_max = KEYS[1], KEYS[2], tonumber(ARGV[1])
if not has_marker() then
  return {}
end
-- One byte more than the longest, which is not returned.
local text = redis.pcall('GETRANGE', lock, 0, 32 + metadata_max)
local value, metadata, is_described = '?', '', 0
if text == '' and redis.call('EXISTS', lock) == 0 then
  value = ''
elseif type(text) == 'string' then
  local claim, rest = string.match(text, '^(' .. string.rep('%x', 32) .. ')({.*)$')
  if claim then
    value, is_described = claim, 1
    metadata = #rest <= metadata_max and rest or ''
  else
    value = string.match(string.sub(text, 1, 64), '^%x+$') or '?'
  end
end
local counter = redis.pcall('GET', token_counter)
counter = string.match(type(counter) == 'string' and counter or '', '^(%d+) %x+ %d+$') or counter
local pttl = ARGV[2] == 'pttl' and redis.pcall('PTTL', lock)
return { value, number_in(counter), metadata, is_described, type(pttl) == 'number' and pttl or -1 }
