-- Restores a holder's lock that this node has lost, if no other claim had it since: the counter is not above the token.
-- The token becomes the counter, and the metadata are stored, so that a majority has both also when this node is needed
-- for it.
--
-- ARGV 5 the token
--      6 the claim's metadata
-- Returns {'mine', counter}, {'refused', counter} or {'empty', 0}.
if not is_marked then
  return { 'empty', 0 }
end
local counter = counter_of(fence)
if look() == 'free' and counter <= number_in(ARGV[5]) and redis.call('SET', lock, claim, 'NX', 'PX', ttl) then
  raise(fence, number_in(ARGV[5]), keep)
  describe(ARGV[6])
  return { 'mine', number_in(ARGV[5]) }
end
return { 'refused', counter }
