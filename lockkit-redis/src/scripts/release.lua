-- Ends a claim in whatever state it is: its place in the queue, its hold. The lock goes to the next one in the queue,
-- also when it was free already. A later grant is never touched: it has another claim.
--
-- Answers 1 when the claim held the lock, otherwise 0.
redis.call('ZREM', queue, claim)
redis.call('HDEL', deadlines, claim)
describe('HDEL', claim)

local state = look()
if state == 'mine' then
  redis.call('DEL', lock)
  describe('HDEL', 'holder')
end
if state ~= 'others' then
  hand_over()
end
return state == 'mine' and 1 or 0
