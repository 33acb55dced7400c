-- The heartbeat of waiting claims: extends the wait of each that is in its queue, and never adds one.
--
-- KEYS 4n - 3 the nth claim's lock
--      4n - 2 its token counter
--      4n - 1 its queue
--      4n     when its waiters lapse
-- ARGV 1 the ttl in ms
--      2 the client
--      3 how long queue and lapses outlive their last use, in ms
--      3 + n the nth claim
-- Returns for each claim {the PTTL of its lock in ms (-1 without a ttl, -2 when nobody holds it), the last
-- token as `acquire` returns it}. The first is -3 when the claim does not wait there (any more): it was granted the
-- lock or dropped, or another program has replaced the queue. The latter must not stop the heartbeats of others.
local ttl, client, linger = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local entry = digits(now + ttl * 1000) .. ':' .. ttl .. ':' .. client

-- Returns the answer to a reading command; false if the key is missing or of another type.
local function read(...)
  local answer = redis.pcall(...)
  return type(answer) ~= 'table' and answer
end

local answers, prolonged = {}, {}
for n = 1, #KEYS / 4 do
  local lock, counter, queue, lapses = KEYS[4 * n - 3], KEYS[4 * n - 2], KEYS[4 * n - 1], KEYS[4 * n]
  local claim = ARGV[3 + n]
  answers[n] = { -3, 0 }
  if read('ZSCORE', queue, claim) and read('HEXISTS', lapses, claim) == 1 then
    if not prolonged[queue] then
      -- Before any HSET: a server at its memory limit (maxmemory) refuses HSET as the first write of a script, but not
      -- PEXPIRE. After the first write it refuses nothing.
      redis.call('PEXPIRE', queue, linger)
      redis.call('PEXPIRE', lapses, linger)
      prolonged[queue] = true
    end
    redis.call('HSET', lapses, claim, entry)
    answers[n] = { redis.call('PTTL', lock), math.max(counted(counter), now) }
  end
end
return answers
