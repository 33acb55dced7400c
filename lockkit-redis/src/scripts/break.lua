-- Ends a hold that an operator has chosen, as its release would, and notifies its client. Writes nothing unless the lock
-- still has that hold, so a copy that arrives late breaks nobody else.
--
-- ARGV 1 the claim of the hold; '' for the lock of another program, whatever its value is
--      4 the token of the hold; '' for the lock of another program
--      5 the channel of the lock's observers
--      6 the beginning of the message to the client of the hold; the value of the lock follows
-- Returns the sum of 1 if the hold was broken, and of 2 if the next waiter was not found yet: then `release` of no claim
-- continues the search.
local token, observers, notice = ARGV[4], ARGV[5], ARGV[6]
local value = value_of(lock)

-- Returns whether the lock still has the hold.
local function is_held()
  if claim ~= '' then
    return value == claim .. ':' .. token
  end
  -- Another program's value may be of any form but that of this library: 32 digits, a colon, a token.
  local is_ours = value and #(string.match(value, '^([0-9a-f]+):[1-9]%d*$') or '') == 32
  return redis.call('EXISTS', lock) == 1 and not is_ours
end

if not is_held() then
  return 0
end
local last_grant = read_if_typed('GETRANGE', counter, 0, 63) or ''
local granted, client = string.match(last_grant, '^(%d+)%z(%x+) ')
local head, more = handoff()
if not head then
  free()
end
if claim ~= '' and granted == token then
  -- A refused PUBLISH must not undo the break. The next heartbeat finds the loss, too.
  redis.pcall('PUBLISH', channel .. client, notice .. value)
end
notify_observers(observers)
return 1 + (not head and more and 2 or 0)
