-- Takes the lock at this node. A repeated request returns what an earlier one has done.
--
-- ARGV 5 a counter that the client proposes: its clock in us
--      6 the claim's metadata
-- Returns {'mine', counter}, {'busy', 0} or {'empty', 0}.
if not is_marked then
  return { 'empty', 0 }
end
local state = look()
if state == 'others' then
  return { 'busy', 0 }
end
local counter = counter_of(fence)
if state == 'free' then
  counter = math.max(counter + 1, number_in(ARGV[5]))
  redis.call('SET', lock, claim, 'NX', 'PX', ttl)
  raise(fence, counter, keep)
  -- Errors are ignored, because the lock does not depend on it.
  describe(ARGV[6])
end
return { 'mine', counter }
