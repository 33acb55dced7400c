-- Returns which of these locks a listing must show because somebody waits for them: not those that one grant has held
-- since before the listing began, whose own keys it finds. Writes nothing.
--
-- KEYS 3n - 2 the nth lock
--      3n - 1 its queue
--      3n     when its waiters lapse
-- ARGV 1 when the listing began, by the server's clock in us
-- Returns 1 or 0 for each lock.
local began = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- How many waiters are looked at, the last ones first: those before them may have lapsed.
local LOOKED_AT_MAX = 100

-- Returns whether a live claim is in the queue, or may be.
local function is_waited_for(queue, lapses)
  local waiters = read('ZREVRANGE', queue, 0, LOOKED_AT_MAX - 1) or {}
  for _, waiter in ipairs(waiters) do
    local lapses_at = string.match(read('HGET', lapses, waiter) or '', '^(%d+):')
    if lapses_at and tonumber(lapses_at) > now then
      return true
    end
  end
  return #waiters == LOOKED_AT_MAX
end

local answers = {}
for n = 1, #KEYS / 3 do
  local value, claim = holder(KEYS[3 * n - 2])
  -- A token is at least the server's time of its grant. Another program's value may look alike, but has no 32 digits.
  local token = #claim == 32 and tonumber(string.match(value, '%d+$'))
  local is_found_by_its_key = token and token < began
  answers[n] = not is_found_by_its_key and is_waited_for(KEYS[3 * n - 1], KEYS[3 * n]) and 1 or 0
end
return answers
