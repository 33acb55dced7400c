-- Bytes of a lock's value that are looked at: more than the longest of our own, "<32 digits>:<16 digits>".
local VALUE_BYTES = 64

-- The value of a lock, cut off: '' for none (or for an empty one); nil when it is no string, which is another program's.
local function value_of(lock)
  local value = redis.pcall('GETRANGE', lock, 0, VALUE_BYTES - 1)
  if type(value) == 'string' then
    return value
  end
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    error(value.err)
  end
  return nil
end

