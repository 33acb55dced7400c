-- Most asks end here, before the functions that other cases need are made: another claim has the lock; or it is free, and
-- its counter is below the proposal. Arguments and results as in ask.lua.
if fields[1] ~= ARGV[#ARGV] then
  return -1
end
-- First, because the lock is mostly free.
local is_taken = redis.call('SET', lock, claim .. ARGV[2], 'NX', 'PX', ARGV[3])
if not is_taken and not has(claim, lock) then
  return 0
end
if is_taken then
  local text = redis.pcall('GET', KEYS[2])
  local last, proposed = type(text) == 'string' and tonumber(text), tonumber(ARGV[5])
  -- A proposal at COUNTER_MAX of number.lua is that of a wrong clock.
  if last and last >= 1 and last < proposed and proposed < 9007199254740991 then
    redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[4])
    local highest = tonumber(fields[2] or '')
    if not highest or highest < proposed then
      redis.call('HSET', KEYS[3], 'highest', ARGV[5])
    end
    return proposed
  end
end

