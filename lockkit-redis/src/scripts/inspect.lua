-- Returns who holds the lock and who waits for it. Writes nothing. Keys that other programs have written are shown as
-- far as possible, and are never an error.
--
-- KEYS as in lock.lua
-- ARGV 1 waiters to show, at most
--      2 bytes of metadata to show, at most
-- Returns {value of the lock, metadata, {waiter, metadata, ...}}; '' for what is missing, and '?' for a value of
-- another program, which is the secret that releases its lock.
local lock, queue, deadlines, metadata = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- Returns the answer to a reading command; nil if the key is of another type.
local function read(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    return nil
  end
  return answer
end

local function description(claim)
  local length = read('HSTRLEN', metadata, claim)
  if not length or length > tonumber(ARGV[2]) then
    return ''
  end
  return read('HGET', metadata, claim) or ''
end

local value = ''
if redis.call('EXISTS', lock) == 1 then
  value = string.match(value_of(lock) or '', '^%x+:%d+$') or '?'
end

local waiters = {}
for _, claim in ipairs(read('ZRANGE', queue, 0, ARGV[1] - 1) or {}) do
  local deadline = string.match(read('HGET', deadlines, claim) or '', '^(%d+):')
  if deadline and tonumber(deadline) > now then
    table.insert(waiters, claim)
    table.insert(waiters, description(claim))
  end
end
return { value, description(string.match(value, '^%x+') or ''), waiters }
