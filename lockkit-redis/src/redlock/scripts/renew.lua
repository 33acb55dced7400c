-- The heartbeat of held locks: renews the ttl of each lock that its claim has at this node. Never creates a lock.
--
-- KEYS 2n the nth lock, 2n + 1 its counter
-- ARGV 2 the ttl in ms
--      3 how long counters outlive their last use, in ms
--      3 + n the nth claim
-- Returns for each lock 1: its claim has it, 0: another has it, -1: no one has it; nothing from a node that has lost
-- its data.
local answers = {}
if is_marked then
  for n = 1, (#KEYS - 1) / 2 do
    local lock, fence = KEYS[2 * n], KEYS[2 * n + 1]
    local value = value_of(lock)
    answers[n] = 0
    if value == ARGV[3 + n] then
      answers[n] = redis.call('PEXPIRE', lock, ARGV[2])
      redis.call('PEXPIRE', fence, ARGV[3])
    elseif value == '' and redis.call('EXISTS', lock) == 0 then
      answers[n] = -1
    end
  end
end
return answers
