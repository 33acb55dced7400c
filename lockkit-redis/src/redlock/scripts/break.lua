-- Ends the hold that an operator has chosen, at this node, as its release would, and notifies its client. Writes nothing
-- if another claim has the lock, except the counter: a restore that comes later finds it too high.
--
-- ARGV 1 the claim; or the value of another program, if that is a hexadecimal number; or '' for any other value
--      2 the counter must be above this: at least the token of the hold
--      3 how long the counter outlives its last use, in ms
--      4 the channel on which the end of a grant is published
--      5 the channel on which the end of a grant is published to its own client
-- Returns 1 if the lock had the hold, otherwise 0; -1: the node does not count.
if not is_marked then
  return -1
end
-- Needs no memory: at `maxmemory` a server refuses SET as the first write of a script, but not after another write.
redis.call('PEXPIRE', token_counter, ARGV[3])
local is_ours = claim ~= '' and has(claim, lock)
local had = is_ours
if not had then
  local value = redis.pcall('GETRANGE', lock, 0, 63)
  value = type(value) == 'string' and value or ''
  if claim == '' then
    local is_other = not string.match(value, '^%x+$') and not string.match(value, '^' .. string.rep('%x', 32) .. '{')
    had = is_other and redis.call('EXISTS', lock) == 1
  else
    had = value == claim
  end
end
if had then
  redis.call('DEL', lock)
end
-- What the next leader proposes counts for its claim alone, and stays.
local last, rest = counter()
raise(math.max(last, number_in(ARGV[2]) + 1), rest, ARGV[3])
if had then
  hint(ARGV[4])
end
if is_ours then
  -- Only a hint: the next heartbeat finds the loss. Never the value of another program: other nodes may still have it,
  -- and it is the secret that ends the lock there.
  redis.pcall('PUBLISH', ARGV[5], claim)
end
return had and 1 or 0
