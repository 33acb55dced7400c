-- What the scripts about one claim to one lock share.
--
-- KEYS 2 the lock: the claim, with a PX, while a lockkit client holds it; any other value is another program's
--      3 its counter
--      4 its metadata (hash): text by claim; "holder" is the claim that asked last
-- ARGV 2 the claim
--      3 its ttl in ms
--      4 how long counter and metadata outlive their last use, in ms
local lock, fence, metadata = KEYS[2], KEYS[3], KEYS[4]
local claim, ttl, keep = ARGV[2], ARGV[3], ARGV[4]

-- Who has the lock: 'free', 'mine' or 'others'.
local function look()
  local value = value_of(lock)
  if value == claim then
    return 'mine'
  end
  if value == '' and redis.call('EXISTS', lock) == 0 then
    return 'free'
  end
  return 'others'
end

-- The number of the proposal in metadata; 0 for none, and for what no lockkit client writes.
local function proposal_number(text)
  local is_json, value = pcall(cjson.decode, text)
  local proposal = is_json and type(value) == 'table' and value.proposal
  return type(proposal) == 'table' and tonumber(proposal.number) or 0
end

-- Stores the claim's metadata, unless the node has some with a higher proposal: a late copy of an earlier request must
-- not undo a later one. Returns the reply of the store, which may be an error.
local function describe(text)
  local last = redis.pcall('HGET', metadata, 'holder')
  if type(last) == 'string' and last ~= claim then
    -- That claim ended without a release.
    redis.pcall('HDEL', metadata, last)
  end
  local reply = nil
  local known = redis.pcall('HGET', metadata, claim)
  if type(known) ~= 'string' or proposal_number(known) <= proposal_number(text) then
    reply = redis.pcall('HSET', metadata, 'holder', claim, claim, text)
  end
  redis.pcall('PEXPIRE', metadata, math.max(tonumber(keep), tonumber(ttl)))
  return reply
end

