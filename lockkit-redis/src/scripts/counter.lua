-- Functions about the token counter of a lock, and about what its last grant has left there.
--
-- KEYS 1 the lock: "<claim>:<token>" with a PX while a lockkit client holds it; another program's lock otherwise
--      2 the token counter: "<highest token so far>\0<client> <metadata>". What follows the number is about the claim
--        that was granted this token; missing if an earlier version of this library has granted it, which reads the
--        number alone

-- Larger numbers are not exact in Lua. No token gets that large.
local TOKEN_MAX = 9007199254740991

-- Formats a number without an exponent; tostring would write one for numbers of this size.
local function digits(number)
  return string.format('%.0f', number)
end

-- Returns the highest token so far; 0 for a counter that is lost, or that no client wrote: it may not even be a number.
local function counted()
  local text = redis.pcall('GETRANGE', KEYS[2], 0, 16)
  local number, after = string.match(type(text) == 'string' and text or '', '^(%d+)(.?)')
  local last = (after == '' or after == '\0') and tonumber(number) or 0
  return last < TOKEN_MAX and last or 0
end

-- Writes the counter, with the client and the metadata of the claim that was granted this token.
local function count(token, client, description, px)
  redis.call('SET', KEYS[2], token .. '\0' .. client .. ' ' .. description, 'PX', px)
end

