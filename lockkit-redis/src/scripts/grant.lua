-- Functions that grant a lock. KEYS as in lock.lua.
--
-- ARGV 2 how long the counter lives after this use, in ms

local now_us

-- Returns the server's time in microseconds, one value for the whole script.
local function now()
  if not now_us then
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
  end
  return now_us
end

-- Grants the lock, which nobody else holds, to a claim of this client. Returns a token above all earlier ones: by the
-- counter, and if that is lost, by the clock.
local function grant(to, px, client, description)
  local token = digits(math.max(counted(KEYS[2]) + 1, now()))
  redis.call('SET', KEYS[1], to .. ':' .. token, 'PX', px)
  count(token, client, description, ARGV[2])
  return tonumber(token)
end

