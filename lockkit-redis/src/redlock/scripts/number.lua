-- Larger numbers are not exact in Lua, and no counter ever gets there.
local COUNTER_MAX = 9007199254740991

-- Other ways of formatting use an exponent for large numbers.
local function digits(number)
  return string.format('%.0f', number)
end

-- The whole number in a reply; 0 for what no lockkit client has written.
local function number_in(reply)
  local number = type(reply) == 'string' and tonumber(reply)
  if number and number >= 0 and number < COUNTER_MAX then
    return math.floor(number)
  end
  return 0
end

