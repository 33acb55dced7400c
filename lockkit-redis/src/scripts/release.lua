-- Ends a claim in whatever state it is: its place in the queue, its hold. The lock goes to the next one in the queue,
-- also when it was free already. A later grant is never touched: it has another claim.
--
-- Answers whether the claim held the lock (1 or 0), and whether the next one in the queue was not found yet: then the same
-- has to be sent again.
redis.call('ZREM', queue, claim)
redis.call('HDEL', deadlines, claim)
describe('HDEL', claim)

local state = look()
if state == 'mine' then
  redis.call('DEL', lock)
  describe('HDEL', 'holder')
end
local head, more
if state ~= 'others' then
  head, more = hand_over()
end
return { state == 'mine' and 1 or 0, not head and more and 1 or 0 }
