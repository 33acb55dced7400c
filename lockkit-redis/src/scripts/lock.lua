-- Functions that the scripts about one claim to one lock share.
--
-- KEYS 1 the lock, and
--      2 the token counter, see counter.lua
--      3 the queue: claims in order of arrival (sorted set)
--      4 the lapses (hash): for every claim in the queue "<server time in us when it lapses>:<ttl in ms>:<client>", and
--        its metadata in the field "@<claim>"
-- ARGV 1 the claim
--      2 how long queue and lapses outlive their last use, in ms: longer than the pause between re-checks. The
--        counter, too, as long as it has the metadata of a holder
local lock, counter, queue, lapses = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local claim, linger = ARGV[1], ARGV[2]

-- The beginning of the channel of a client.
local channel = 'lockkit:client:'

-- Returns the answer to a reading command. If another program has replaced the queue or its lapses, a script must
-- fail before its first write, never half-way: so it reads each of them before it writes.
local function read(command, key, ...)
  local answer = read_if_typed(command, key, ...)
  if answer == nil then
    error('WRONGTYPE ' .. key .. ' was replaced by another program')
  end
  return answer
end

-- Returns who has the lock: 'free', 'mine' with the token, or 'others'.
local function lock_state()
  local value = value_of(lock)
  if value == '' and redis.call('EXISTS', lock) == 0 then
    return 'free'
  end
  local holder, token = string.match(value or '', '^(%x+):(%d+)$')
  if holder == claim then
    return 'mine', tonumber(token)
  end
  return 'others'
end

-- Removes a claim from the queue.
local function leave_queue(of)
  redis.call('ZREM', queue, of)
  redis.call('HDEL', lapses, of, '@' .. of)
end

-- The most lapsed waiters that one script drops: while a script runs, the server serves no other client.
local LAPSED_MAX = 500

-- Grants the lock, which is free or about to be, to the first live claim in the queue, and notifies its client; lapsed
-- ones before it are dropped. Returns that claim and its token, or nil and whether the end of the queue was not reached.
local function handoff()
  for _ = 1, LAPSED_MAX do
    local head = read('ZRANGE', queue, 0, 0)[1]
    if not head then
      return nil, false
    end
    local entry = read('HMGET', lapses, head, '@' .. head)
    local lapses_at, px, client = string.match(entry[1] or '', '^(%d+):(%d+):(%x+)$')
    local is_live = lapses_at and tonumber(lapses_at) > now()
    leave_queue(head)
    if is_live then
      local token = grant(head, px, client, entry[2] or '')
      if head ~= claim then
        -- A refused PUBLISH must not stop the handoff half-way. The next heartbeat finds the grant, too.
        redis.pcall('PUBLISH', channel .. client, head .. ':' .. digits(token))
      end
      return head, token
    end
  end
  return nil, true
end

