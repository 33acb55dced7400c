-- Replaces the metadata of the claim that holds the lock, and notifies observers. A late copy does not undo a later
-- proposal: it finds a higher number, and writes nothing.
--
-- KEYS 1 the lock
--      2 the token counter, which has the metadata
-- ARGV 1 the value that the lock must have
--      2 the token in it
--      3 the claim's metadata
--      4 the number of the proposal in them
--      5 how long they outlive their last use, in ms
--      6 bytes of metadata to read, at most
--      7 the channel of observers
--      8 the client
-- Returns whether the claim holds the lock (1 or 0).
if value_of(KEYS[1]) ~= ARGV[1] then
  return 0
end

-- Returns the number of the stored proposal; nil if there is none, or if another program has written the metadata.
local function stored_number()
  local _, metadata = last_grant(KEYS[2], ARGV[6])
  local is_json, stored = pcall(cjson.decode, metadata)
  local proposal = is_json and type(stored) == 'table' and stored.proposal
  return type(proposal) == 'table' and tonumber(proposal.number) or nil
end

local number = stored_number()
if number and number > tonumber(ARGV[4]) then
  return 1
end
-- PEXPIRE first: a server at its memory limit (maxmemory) refuses SET as the first write of a script.
redis.call('PEXPIRE', KEYS[2], ARGV[5])
-- The counter never falls: an operator may have raised it.
count(digits(math.max(counted(KEYS[2]), tonumber(ARGV[2]))), ARGV[8], ARGV[3], ARGV[5])
-- A refused PUBLISH is no error: the message is a hint.
redis.pcall('PUBLISH', ARGV[7], '')
return 1
