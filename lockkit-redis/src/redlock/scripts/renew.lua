-- The heartbeat of held locks: renews the ttl of each lock that its claim has at this node. Never creates a lock.
--
-- KEYS 2n - 1 the nth lock, 2n its counter
-- ARGV 1 the ttl in ms
--      2 how long counters outlive their last use, in ms
--      2 + n the nth claim
-- Returns for each lock 1: its claim has it, 0: another has it, -1: no one has it; nothing from a node that has lost
-- its data.
local answers = {}
if has_marker() then
  for n = 1, (#KEYS - 1) / 2 do
    local lock, claim = KEYS[2 * n - 1], ARGV[2 + n]
    local is_held, value = has(claim, lock)
    answers[n] = 0
    if is_held then
      answers[n] = redis.call('PEXPIRE', lock, ARGV[1])
      redis.call('PEXPIRE', KEYS[2 * n], ARGV[2])
    elseif value == '' and redis.call('EXISTS', lock) == 0 then
      answers[n] = -1
    end
  end
end
return answers
