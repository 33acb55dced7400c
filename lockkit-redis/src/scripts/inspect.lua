-- Returns who holds the lock and who waits for it. Writes nothing.
--
-- KEYS as in lock.lua
-- ARGV 1 waiters to show, at most
--      2 bytes of metadata to show, at most
-- Returns {{value of the lock, client, metadata, PTTL}, {waiter, client, metadata, ms until it lapses}, ...}; the value as
-- `holder` shows it, '' for what is missing.
local lock, queue, deadlines, metadata = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local value, claim = holder(lock)
local held_by, client = string.match(read('HGET', metadata, 'holder') or '', '^(%x+):(%x+)$')
if held_by ~= claim then
  -- Left by an earlier holder.
  client = ''
end
local shown = { { value, client, description(metadata, claim, ARGV[2]), redis.call('PTTL', lock) } }
for _, waiter in ipairs(read('ZRANGE', queue, 0, ARGV[1] - 1) or {}) do
  local deadline, of = string.match(read('HGET', deadlines, waiter) or '', '^(%d+):%d+:(%x+)$')
  local left = deadline and tonumber(deadline) - now
  if left and left > 0 then
    table.insert(shown, { waiter, of, description(metadata, waiter, ARGV[2]), math.ceil(left / 1000) })
  end
end
return shown
