-- Stores metadata with another proposal, if the claim has the lock at this node. Later ones are not undone.
--
-- ARGV 2 the metadata
--      3 how long the counter outlives its last use, in ms
-- Returns 1; 0: refused, -1: the node does not count.
if not is_marked then
  return -1
end
if not has(claim, lock) then
  return 0
end
local last, rest = counter()
local number = proposal_number(ARGV[2])
if last_proposal(rest) <= number then
  raise(last, with_proposal(rest, number), ARGV[3])
  redis.call('SET', lock, claim .. ARGV[2], 'KEEPTTL')
end
return 1
