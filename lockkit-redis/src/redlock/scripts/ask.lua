-- Takes the lock at this node. A repeated request returns what an earlier one has done.
--
-- ARGV 2 the claim's metadata
--      3 its ttl in ms
--      4 how long the counter outlives its last use, in ms
--      5 a counter that the client proposes: its clock in us
-- Returns the counter if the claim has the lock; 0: another has it, -1: the node does not count.
local last, rest = counter()
if not is_taken then
  return last
end
if string.find(rest, claim, 1, true) then
  -- A late copy: the node has lost the lock, and the metadata are those before a proclaim. A heartbeat restores it.
  redis.call('DEL', lock)
  return 0
end
local number = math.max(last + 1, number_in(ARGV[5]))
raise(number, '', ARGV[4])
return number
