-- Removes a claim from this node.
--
-- ARGV 2 the channel on which the end of a grant is published; '' without a grant
-- Returns 1 if the claim had the lock, otherwise 0.
local had = has(claim, lock)
if had then
  redis.call('DEL', lock)
  if ARGV[2] ~= '' then
    -- A clean-up is not published: where a node lacks the holder's key, every waiter takes it there and removes it
    -- again, and would wake other waiters.
    hint(ARGV[2])
  end
end
return had and 1 or 0
