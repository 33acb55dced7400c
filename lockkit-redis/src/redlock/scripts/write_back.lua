-- Stores the token as the counter of this node, if the claim has the lock and no later claim can have seen a higher
-- counter.
--
-- ARGV 2 the token
--      3 how long the counter outlives its last use, in ms
-- Returns the token; 0: refused, -1: the node does not count.
if not is_marked then
  return -1
end
local last, rest = counter()
local token = number_in(ARGV[2])
if last > token or not has(claim, lock) then
  return 0
end
raise(token, rest, ARGV[3])
return token
