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

-- Returns a text, or '' if it is missing or has more than this number of bytes.
local function at_most(text, bytes_max)
  return text and #text <= tonumber(bytes_max) and text or ''
end

-- Returns the client and the metadata of the last grant, '' for what is missing. While a client of this library holds
-- the lock, they are the holder's: every grant writes them.
local function last_grant(counter, bytes_max)
  -- Token and client have fewer bytes than this.
  local left = read('GETRANGE', counter, 0, bytes_max + 64) or ''
  local client, description = string.match(left, '^%d+%z(%x+) (.*)$')
  return client or '', at_most(description, bytes_max)
end

-- Returns the value of the lock: '' if nobody holds it, and '?' for a value of another program, which is the secret
-- that releases its lock. Also returns the claim that holds it, or ''.
local function holder(lock)
  local value = ''
  if redis.call('EXISTS', lock) == 1 then
    value = string.match(value_of(lock) or '', '^' .. string.rep('%x', 32) .. ':%d+$') or '?'
  end
  return value, string.match(value, '^%x+') or ''
end

