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

-- Returns the answer to a reading command; nil if the key is of another type.
local function read_if_typed(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then
    -- Fails again, and ends the script: a user without the right must not get a token that ignores the counter.
    redis.call(command, key, ...)
  end
  return nil
end

-- Returns the highest token so far; 0 for a counter that is lost, or that no client wrote: it may not even be a number.
local function counted(counter)
  -- '0' and '16' are texts: to format a number takes the server as long as a short command.
  local number, after = string.match(read_if_typed('GETRANGE', counter, '0', '16') or '', '^(%d+)(.?)')
  local last = (after == '' or after == '\0') and tonumber(number) or 0
  return last < TOKEN_MAX and last or 0
end

-- Writes the counter, with the client and the metadata of the claim that was granted this token.
local function count(token, client, description, px)
  redis.call('SET', KEYS[2], token .. '\0' .. client .. ' ' .. description, 'PX', px)
end

