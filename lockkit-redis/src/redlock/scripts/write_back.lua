-- Stores the token as the counter of this node, if the claim has the lock and no later claim can have seen a higher
-- counter.
--
-- ARGV 5 the token
-- Returns {'mine', token}, {'refused', counter} or {'empty', 0}.
if not is_marked then
  return { 'empty', 0 }
end
local counter, token = counter_of(fence), number_in(ARGV[5])
if look() ~= 'mine' or counter > token then
  return { 'refused', counter }
end
raise(fence, token, keep)
return { 'mine', token }
