-- Writes the record of a lock, if the claim has the lock at this node. A later record is not undone.
--
-- KEYS 5 the record: "<token>:<number of the write>:<text>"
-- ARGV 5 the token of the claim's grant
--      6 the number of the write, counted by the holder
--      7 the text
--      8 how long it is kept, in ms
-- Returns {'mine', 0}, {'refused', 0} or {'empty', 0}.
if not is_marked then
  return { 'empty', 0 }
end
local record, token, number = KEYS[5], number_in(ARGV[5]), number_in(ARGV[6])
local known = redis.pcall('GET', record)
local known_token, known_number = string.match(type(known) == 'string' and known or '', '^(%d+):(%d+):')
known_token, known_number = number_in(known_token), number_in(known_number)
if look() ~= 'mine' or known_token > token then
  return { 'refused', 0 }
end
if known_token < token or known_number <= number then
  -- Before the record: it must not exist without that.
  extend_records(number_in(ARGV[8]) * 1000)
  redis.call('SET', record, digits(token) .. ':' .. digits(number) .. ':' .. ARGV[7], 'PX', ARGV[8])
end
return { 'mine', 0 }
