-- The heartbeat of held locks: renews the ttl of each lock that its claim has at this node. Never creates a lock.
--
-- KEYS 3n - 1 the nth lock, 3n its counter, 3n + 1 its metadata
-- ARGV 2 the ttl in ms
--      3 how long counters and metadata outlive their last use, in ms
--      3 + n the nth claim
-- Returns for each lock 1: its claim has it, 0: another has it, -1: no one has it; nothing from a node that has lost
-- its data.
local answers = {}
if is_marked then
  local keep_metadata = math.max(tonumber(ARGV[2]), tonumber(ARGV[3]))
  for n = 1, (#KEYS - 1) / 3 do
    local lock, fence = KEYS[3 * n - 1], KEYS[3 * n]
    local value = value_of(lock)
    answers[n] = 0
    if value == ARGV[3 + n] then
      answers[n] = redis.call('PEXPIRE', lock, ARGV[2])
      redis.call('PEXPIRE', fence, ARGV[3])
      redis.pcall('PEXPIRE', KEYS[3 * n + 1], keep_metadata)
    elseif value == '' and redis.call('EXISTS', lock) == 0 then
      answers[n] = -1
    end
  end
end
return answers
