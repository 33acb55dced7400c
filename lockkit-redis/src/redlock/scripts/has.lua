-- Whether a claim has a lock. Its value is "<claim><metadata>", with a PX, while a lockkit client holds it; metadata is
-- JSON in braces. Any other value is another program's. Also returns the start of the value.
local function has(claim, lock)
  local value = redis.pcall('GETRANGE', lock, 0, #claim)
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    error(value.err)
  end
  return value == claim .. '{', value
end

