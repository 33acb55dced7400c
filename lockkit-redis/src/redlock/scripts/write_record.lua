-- Writes the record of a lock, if the claim has the lock at this node. A later record is not undone.
--
-- KEYS 2 the record: "<token>:<number of the write>:<text>"
-- ARGV 2 the token of the claim's grant
--      3 the number of the write, counted by the holder
--      4 the text
--      5 how long it is kept, in ms
-- Returns 1; 0: refused, -1: the node does not count.
if not has_marker() then
  return -1
end
local record, token, number = KEYS[2], number_in(ARGV[2]), number_in(ARGV[3])
local known = redis.pcall('GET', record)
local known_token, known_number = string.match(type(known) == 'string' and known or '', '^(%d+):(%d+):')
known_token, known_number = number_in(known_token), number_in(known_number)
if not has(claim, lock) or known_token > token then
  return 0
end
if known_token < token or known_number <= number then
  -- Before the record: it must not exist without that.
  extend_records(number_in(ARGV[5]) * 1000)
  redis.call('SET', record, digits(token) .. ':' .. digits(number) .. ':' .. ARGV[4], 'PX', ARGV[5])
end
return 1
