-- The beat of waiting claims: moves the deadline of each that is in its queue, and never puts one there.
--
-- KEYS 2n - 1 the nth claim's lock
--      2n the deadlines of its queue
-- ARGV 1 the ttl in ms
--      2 the client
--      2 + n the nth claim
-- Answers 1 for each claim that waits for a holder; 0 is a reason to confirm: it was handed the lock or dropped, or
-- nobody holds the lock.
local ttl, client = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local deadline = tonumber(time[1]) * 1000000 + tonumber(time[2]) + ttl * 1000
local entry = string.format('%.0f', deadline) .. ':' .. ttl .. ':' .. client

local answers = {}
for n = 1, #KEYS / 2 do
  local lock, deadlines, claim = KEYS[2 * n - 1], KEYS[2 * n], ARGV[2 + n]
  answers[n] = 0
  if redis.call('HEXISTS', deadlines, claim) == 1 then
    redis.call('HSET', deadlines, claim, entry)
    answers[n] = redis.call('EXISTS', lock)
  end
end
return answers
