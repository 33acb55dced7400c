-- Functions that show the holder of a lock. Keys that other programs have written are shown as far as possible, and are
-- never an error.

-- Returns the answer to a reading command; nil if the key is of another type.
local function read(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    return nil
  end
  return answer
end

-- Returns the metadata of a claim; '' if there are none, or more than this number of bytes.
local function description(metadata, claim, bytes_max)
  local length = read('HSTRLEN', metadata, claim)
  if not length or length > tonumber(bytes_max) then
    return ''
  end
  return read('HGET', metadata, claim) or ''
end

-- Returns the value of the lock: '' if nobody holds it, and '?' for a value of another program, which is the secret
-- that releases its lock. Also returns the claim that holds it, or ''.
local function holder(lock)
  local value = ''
  if redis.call('EXISTS', lock) == 1 then
    value = string.match(value_of(lock) or '', '^%x+:%d+$') or '?'
  end
  return value, string.match(value, '^%x+') or ''
end

