-- Notifies clients that wait for a lock that it may be free. Only a hint: waiters poll, too.

-- Groups of the clients that wait for a lock; hints.rs has the same number.
local GROUPS = 64

-- How many clients are subscribed to a channel; nil: the user has no right to know it.
local function subscribed(channel)
  return redis.pcall('PUBSUB', 'NUMSUB', channel)[2]
end

-- Publishes on the channel of a lock how many clients receive it; '' if that is not known. Up to two clients are all
-- notified, because one of two that ask an odd number of nodes gets a majority. Of more, only one group is: every
-- message costs its client and the node more than an ask.
--
-- The claim says in which order groups are looked at, so that all nodes choose the same one. Not only where to begin:
-- with one order for all claims, a group behind a gap would be chosen most of the time. An odd stride reaches all of
-- them. A break may name the value of another program, which can be any text.
local function hint(channel)
  local count = subscribed(channel)
  if count and count > 2 then
    local first = (tonumber(string.sub(claim, 1, 2), 16) or 0) % GROUPS
    local stride = (tonumber(string.sub(claim, 3, 4), 16) or 0) % GROUPS * 2 + 1
    local prefix = string.sub(channel, 1, -1 - #lock) .. 'lockkit:'
    for step = 0, GROUPS - 1 do
      local group = prefix .. (first + step * stride) % GROUPS .. ':' .. lock
      local members = subscribed(group)
      if members > 0 then
        channel, count = group, members
        break
      end
    end
  end
  if count ~= 0 then
    redis.pcall('PUBLISH', channel, count or '')
  end
end
