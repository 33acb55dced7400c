-- The proposals of a claim: a late copy of an earlier request must not undo a later one, also after the node has lost
-- the lock. So their numbers are stored with the counter.

-- The number of the proposal in metadata; 0 for none, and for what no lockkit client writes.
local function proposal_number(text)
  local is_json, value = pcall(cjson.decode, text)
  local proposal = is_json and type(value) == 'table' and value.proposal
  return type(proposal) == 'table' and tonumber(proposal.number) or 0
end

-- The number of the claim's last proposal by the rest of the counter's text; 0 for none.
local function last_proposal(rest)
  local owner, number = string.match(rest, '^ (%x+) (%d+)$')
  return owner == claim and number_in(number) or 0
end

-- The rest of the counter's text with this proposal.
local function with_proposal(rest, number)
  return number > 0 and ' ' .. claim .. ' ' .. digits(number) or rest
end

