-- Functions of the short ways, which need no others: a script makes all of its functions anew, each time. KEYS and ARGV
-- as in lock.lua.

-- Notifies the observers of the lock's leader; `observers` is their channel, or nil if the claim takes part in no
-- election. A refused PUBLISH must not stop a script half-way. The message is a hint.
local function notify_observers(observers)
  if observers then
    redis.pcall('PUBLISH', observers, '')
  end
end

-- Frees the lock, which nobody waits for. From now on the counter outlives its last use by its own time.
local function free()
  redis.call('DEL', KEYS[1])
  if ARGV[3] ~= ARGV[5] then
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
  end
end

