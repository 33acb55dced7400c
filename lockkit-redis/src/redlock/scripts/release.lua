-- Ends a claim at this node, whatever it has there. After a grant the counter passes its token, whoever has the lock now,
-- or nobody: a restore that comes later finds it too high.
--
-- ARGV 5 the token; 0 without a grant
--      6 the channel on which waiters are notified of the end of a grant
-- Answers {'done', 1 when the claim had the lock, otherwise 0}.
local had = look() == 'mine'
if had then
  redis.call('DEL', lock)
end
if redis.pcall('HDEL', metadata, claim) == 1 and redis.call('HGET', metadata, 'holder') == claim then
  redis.call('HDEL', metadata, 'holder')
end
if is_marked then
  local token = number_in(ARGV[5])
  if token > 0 then
    raise(fence, math.max(counter_of(fence), token + 1), keep)
  end
end
if had and number_in(ARGV[5]) > 0 then
  -- A hint only; without the right to send it waiters look by themselves. What an attempt takes back is no reason to ask:
  -- where a holder lacks this node, every waiter wins it, takes that back, and would wake all others.
  redis.pcall('PUBLISH', ARGV[6], '')
end
return { 'done', had and 1 or 0 }
