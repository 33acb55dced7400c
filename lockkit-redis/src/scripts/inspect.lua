-- Returns who holds the lock and who waits for it. Writes nothing.
--
-- KEYS as in lock.lua
-- ARGV 1 waiters to show, at most
--      2 bytes of metadata to show, at most
-- Returns {value of the lock, metadata, {waiter, metadata, ...}}; the value as `holder` shows it, '' for what is
-- missing.
local lock, queue, deadlines, metadata = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local waiters = {}
for _, claim in ipairs(read('ZRANGE', queue, 0, ARGV[1] - 1) or {}) do
  local deadline = string.match(read('HGET', deadlines, claim) or '', '^(%d+):')
  if deadline and tonumber(deadline) > now then
    table.insert(waiters, claim)
    table.insert(waiters, description(metadata, claim, ARGV[2]))
  end
end
local value, claim = holder(lock)
return { value, description(metadata, claim, ARGV[2]), waiters }
