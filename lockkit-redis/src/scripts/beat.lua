-- The beat of waiting claims: moves the deadline of each that is in its queue, and never puts one there.
--
-- KEYS 3n - 2 the nth claim's lock
--      3n - 1 its queue
--      3n the deadlines of its queue
-- ARGV 1 the ttl in ms
--      2 the client
--      2 + n the nth claim
-- Answers 1 for each claim that waits for a holder; 0 is a reason to confirm: it was handed the lock or dropped, or
-- nobody holds the lock, or another program has put something else in place of the queue, which must not stop the beats
-- of others.
local ttl, client = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local deadline = tonumber(time[1]) * 1000000 + tonumber(time[2]) + ttl * 1000
local entry = string.format('%.0f', deadline) .. ':' .. ttl .. ':' .. client

-- The answer to a reading command; false where there is nothing, or nothing of its type.
local function read(...)
  local answer = redis.pcall(...)
  return type(answer) ~= 'table' and answer
end

local answers = {}
for n = 1, #KEYS / 3 do
  local lock, queue, deadlines, claim = KEYS[3 * n - 2], KEYS[3 * n - 1], KEYS[3 * n], ARGV[2 + n]
  answers[n] = 0
  if read('ZSCORE', queue, claim) and read('HEXISTS', deadlines, claim) == 1 then
    redis.call('HSET', deadlines, claim, entry)
    answers[n] = redis.call('EXISTS', lock)
  end
end
return answers
