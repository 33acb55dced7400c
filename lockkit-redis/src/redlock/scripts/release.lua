-- Removes a claim from this node. After a grant the counter is raised above its token, even if another claim has the
-- lock or none: a restore that comes later finds it too high.
--
-- ARGV 5 the token; 0 without a grant
--      6 the channel on which the end of a grant is published
-- Returns {'done', 1 if the claim had the lock, otherwise 0}.
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
  -- Only a hint: without the right to publish, waiters poll. A clean-up is not published: where a node lacks the
  -- holder's key, every waiter takes it there and removes it again, and would wake all other waiters.
  redis.pcall('PUBLISH', ARGV[6], '')
end
return { 'done', had and 1 or 0 }
