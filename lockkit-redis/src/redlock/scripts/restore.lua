-- Restores a holder's lock that this node has lost, if no other claim had it since: the counter is not above the token.
-- The token becomes the counter, and the metadata are stored, so that a majority has both also when this node is needed
-- for it.
--
-- ARGV 2 the claim's metadata
--      3 its ttl in ms
--      4 how long the counter outlives its last use, in ms
--      5 the token
-- Returns the token; 0: refused, -1: the node does not count.
if not is_marked then
  return -1
end
local last, rest = counter()
local token, number = number_in(ARGV[5]), proposal_number(ARGV[2])
if last > token or last_proposal(rest) > number then
  return 0
end
if not redis.call('SET', lock, claim .. ARGV[2], 'NX', 'PX', ARGV[3]) then
  return 0
end
raise(token, with_proposal(rest, number), ARGV[4])
return token
