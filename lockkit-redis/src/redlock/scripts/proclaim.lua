-- Stores metadata with another proposal, if the claim has the lock at this node. Later ones are not undone.
--
-- ARGV 5 the metadata
-- Returns {'mine', 0}, {'refused', 0} or {'empty', 0}.
if not is_marked then
  return { 'empty', 0 }
end
if look() ~= 'mine' then
  return { 'refused', 0 }
end
local reply = describe(ARGV[5])
if type(reply) == 'table' and reply.err then
  return reply
end
return { 'mine', 0 }
