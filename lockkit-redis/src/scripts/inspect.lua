-- Returns who holds the lock and who waits for it. Writes nothing.
--
-- KEYS as in lock.lua
-- ARGV 1 waiters to show, at most
--      2 bytes of metadata to show, at most
-- Returns {{value of the lock, client, metadata, PTTL}, {waiter, client, metadata, ms until it lapses}, ...}; the value as
-- `holder` shows it, '' for what is missing.
local lock, counter, queue, lapses = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- Returns the metadata of a waiter. An operator may have put anything there, so its length is asked for first.
local function description(waiter)
  local field = '@' .. waiter
  local length = read('HSTRLEN', lapses, field)
  return length and length <= tonumber(ARGV[2]) and read('HGET', lapses, field) or ''
end

local value, claim = holder(lock)
local client, metadata = '', ''
if claim ~= '' then
  client, metadata = last_grant(counter, ARGV[2])
end
local shown = { { value, client, metadata, redis.call('PTTL', lock) } }
for _, waiter in ipairs(read('ZRANGE', queue, 0, ARGV[1] - 1) or {}) do
  local lapses_at, of = string.match(read('HGET', lapses, waiter) or '', '^(%d+):%d+:(%x+)$')
  local left = lapses_at and tonumber(lapses_at) - now
  if left and left > 0 then
    table.insert(shown, { waiter, of, description(waiter), math.ceil(left / 1000) })
  end
end
return shown
