-- A function of the short ways, which need no other: a script makes all of its functions each time it runs.

-- Notifies the observers of the lock's leader; `observers` is their channel, or nil if the claim takes part in no
-- election. A refused PUBLISH must not stop a script half-way. The message is a hint.
local function notify_observers(observers)
  if observers then
    redis.pcall('PUBLISH', observers, '')
  end
end

