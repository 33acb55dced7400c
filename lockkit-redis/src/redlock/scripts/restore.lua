-- Restores a holder's lock that this node has lost, if no other claim had it since: the counter is not above the token.
--
-- ARGV 5 the token
-- Returns {'mine', counter}, {'refused', counter} or {'empty', 0}.
if not is_marked then
  return { 'empty', 0 }
end
local counter = counter_of(fence)
if look() == 'free' and counter <= number_in(ARGV[5]) and redis.call('SET', lock, claim, 'NX', 'PX', ttl) then
  redis.call('PEXPIRE', fence, keep)
  return { 'mine', counter }
end
return { 'refused', counter }
