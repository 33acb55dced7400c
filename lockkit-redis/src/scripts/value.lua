-- Bytes of a lock's value that are read: more than the longest of lockkit's values, "<32 digits>:<16 digits>".
local VALUE_BYTES = 64

-- Returns the start of a lock's value: '' for none (or an empty one); nil if it is not a string, but another program's
-- key.
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

