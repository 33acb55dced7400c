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

-- Lets a lock live for at least `px` ms from now, if it exists. Never shortens its lifetime: the hold may be pinned for
-- longer, and late copies of earlier requests must not undo that. Returns whether the lock exists (1 or 0).
local function prolong(lock, px)
  if redis.call('PTTL', lock) > tonumber(px) then
    return 1
  end
  return redis.call('PEXPIRE', lock, px)
end

