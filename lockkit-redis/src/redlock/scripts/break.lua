-- Ends the hold that an operator has chosen, at this node, as its release would, and notifies its client. Writes nothing
-- if another claim has the lock, except the counter: a restore that comes later finds it too high.
--
-- ARGV 2 the value of the lock; '' for any that no lockkit client writes
--      5 the counter must be above this: at least the token of the hold
--      6 the channel on which the end of a grant is published
--      7 the channel on which the end of a grant is published to its own client
-- Returns {'done', 1 if the lock had the hold, otherwise 0} or {'empty', 0}.
if not is_marked then
  return { 'empty', 0 }
end
local value = value_of(lock)
local had = value == claim
if claim == '' then
  had = redis.call('EXISTS', lock) == 1 and not string.match(value or '', '^%x+$')
end
local is_ours = false
if had then
  redis.call('DEL', lock)
  is_ours = redis.pcall('HDEL', metadata, claim) == 1
  redis.pcall('HDEL', metadata, 'holder')
end
raise(fence, math.max(counter_of(fence), number_in(ARGV[5]) + 1), keep)
if had then
  -- Only hints: waiters poll, and the next heartbeat finds the loss.
  redis.pcall('PUBLISH', ARGV[6], '')
end
if is_ours then
  -- Never the value of another program: other nodes may still have it, and it is the secret that ends the lock there.
  redis.pcall('PUBLISH', ARGV[7], claim)
end
return { 'done', had and 1 or 0 }
