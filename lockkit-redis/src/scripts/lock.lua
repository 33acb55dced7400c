-- Functions that the scripts about one claim to one lock share.
--
-- KEYS 1 the lock: "<claim>:<token>" with a PX while a lockkit client holds it; another program's lock otherwise
--      2 the token counter: the highest token so far
--      3 the queue: claims in order of arrival (sorted set)
--      4 the deadlines: "<server time in us>:<ttl in ms>:<client>" of every claim in the queue (hash)
--      5 the metadata of holder and waiters by claim; the field "holder" is "<claim>:<client>" of the last grant (hash)
-- ARGV 1 the claim
--      2 its ttl in ms
--      3 how long the token counter outlives its last use, in ms
--      4 the prefix of the channel of a client
--      5 how long queue, deadlines and metadata outlive their last use, in ms: longer than the pause between re-checks
local lock, counter, queue, deadlines, metadata = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local claim, ttl, counter_ttl, channel, linger = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- If another program has replaced the queue, the script fails before its first write, never half-way.
for key, type in pairs({ [queue] = 'zset', [deadlines] = 'hash' }) do
  local found = redis.call('TYPE', key).ok
  if found ~= type and found ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ', no ' .. type)
  end
end

-- Larger numbers are not exact in Lua. No token gets that large.
local TOKEN_MAX = 9007199254740991

-- The server's time in microseconds, one value for the whole script.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- Formats a number without an exponent; tostring would write one for numbers of this size.
local function digits(number)
  return string.format('%.0f', number)
end

-- Runs a command on the metadata. They are optional: an error of their key must not stop a script half-way. Returns
-- false for an error.
local function describe(command, ...)
  local answer = redis.pcall(command, metadata, ...)
  return type(answer) ~= 'table' and answer
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

-- Returns a token above all earlier ones: by the counter, and if that is lost, by the clock.
local function mint()
  local last = redis.pcall('GET', counter)
  last = type(last) == 'string' and tonumber(last) or 0
  if not (last >= 0 and last < TOKEN_MAX) then
    -- No client wrote that; it may not even be a number.
    last = 0
  end
  return math.max(last + 1, now)
end

-- Grants the free lock to a claim of this client, with this ttl. `description` is its metadata, unless they are stored
-- already.
local function grant(to, px, client, description)
  local token = mint()
  if not redis.call('SET', lock, to .. ':' .. digits(token), 'NX', 'PX', px) then
    return nil
  end
  redis.call('SET', counter, digits(token), 'PX', counter_ttl)
  local last = string.match(describe('HGET', 'holder') or '', '^%x+')
  if last and last ~= to then
    -- The last holder ended without a release.
    describe('HDEL', last)
  end
  if description then
    describe('HSET', 'holder', to .. ':' .. client, to, description)
  else
    describe('HSET', 'holder', to .. ':' .. client)
  end
  describe('PEXPIRE', linger)
  return token
end

-- The most lapsed waiters that one script drops: while a script runs, the server serves no other client.
local LAPSED_MAX = 500

-- Grants the free lock to the first live claim in the queue, and notifies its client; lapsed ones before it are
-- dropped. Returns that claim and its token, or nil and whether the end of the queue was not reached.
local function handoff()
  for _ = 1, LAPSED_MAX do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      return nil, false
    end
    local deadline, px, client = string.match(redis.call('HGET', deadlines, head) or '', '^(%d+):(%d+):(%x+)$')
    redis.call('ZREM', queue, head)
    redis.call('HDEL', deadlines, head)
    if deadline and tonumber(deadline) > now then
      local token = grant(head, px, client)
      if head ~= claim then
        -- A refused PUBLISH must not stop the handoff half-way. The message is a hint; the next heartbeat finds the
        -- grant, too.
        redis.pcall('PUBLISH', channel .. client, head)
      end
      return head, token
    end
    describe('HDEL', head)
  end
  return nil, true
end

-- Serves the queue if the lock is free, and returns who has the lock then; 'unserved' if the next waiter was not found
-- yet.
local function serve()
  local state, token = lock_state()
  if state ~= 'free' then
    return state, token
  end
  local head, more = handoff()
  if head then
    return head == claim and 'mine' or 'others', more
  end
  return more and 'unserved' or 'free'
end

-- Returns whether the claim waits: it has an entry in the queue, and a deadline. An operator may have removed either;
-- the claim's withdrawal removes the rest.
local function queued()
  return redis.call('ZSCORE', queue, claim) and redis.call('HEXISTS', deadlines, claim) == 1
end

-- Extends the wait of the claim: its deadline is one ttl from now. `state` is the answer of `serve`.
--
-- A server at its memory limit (maxmemory) refuses HSET as the first write of a script, but not PEXPIRE. After the
-- first write it refuses nothing. So PEXPIRE comes first, and waiters keep their entries.
local function extend_wait(client, state)
  redis.call('PEXPIRE', queue, linger)
  redis.call('HSET', deadlines, claim, digits(now + ttl * 1000) .. ':' .. ttl .. ':' .. client)
  redis.call('PEXPIRE', deadlines, linger)
  describe('PEXPIRE', linger)
  return { state == 'unserved' and state or 'queued', redis.call('PTTL', lock) }
end

-- Notifies the observers of the lock's leader; `observers` is their channel, or nil if the claim takes part in no
-- election. A refused PUBLISH must not stop a script half-way. The message is a hint.
local function notify_observers(observers)
  if observers then
    redis.pcall('PUBLISH', observers, '')
  end
end

-- Restarts the lifetime of the lock, which the claim holds. Never shortens it: the hold may be pinned for longer, and
-- this may be a late copy of the request that was granted the lock. Writes also if the lifetime is the same: where
-- replicas must acknowledge a grant, they acknowledge this write.
local function hold(token, observers)
  if redis.call('PTTL', lock) <= tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
  if observers then
    -- Candidates confirm now and then while they lead, so that what they propose does not expire.
    describe('PEXPIRE', linger)
  end
  notify_observers(observers)
  return { 'granted', token }
end

