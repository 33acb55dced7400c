-- What the scripts share that are about one claim to one lock.
--
-- KEYS 1 the lock: "<claim>:<token>" with a PX while a lockkit client holds it; anything else is another program's
--      2 the fence: the highest token so far
--      3 the queue: claims in order of arrival (sorted set)
--      4 the deadlines: "<server time in us>:<ttl in ms>:<client>" of every claim in the queue (hash)
--      5 the metadata of holder and waiters by claim; "holder" is the claim that was granted last (hash)
-- ARGV 1 the claim
--      2 its ttl in ms
--      3 how long the fence outlives its last use, in ms
--      4 the channel of a client, without the client at its end
--      5 how long queue, deadlines and metadata outlive their last use, in ms: longer than anybody waits without a look
local lock, fence, queue, deadlines, metadata = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local claim, ttl, keep, channel, linger = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- What another program has put in place of the queue stops a script before its first write, never half-way.
for key, type in pairs({ [queue] = 'zset', [deadlines] = 'hash' }) do
  local found = redis.call('TYPE', key).ok
  if found ~= type and found ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ', no ' .. type)
  end
end

-- Numbers above are not exact in Lua, and no token ever is.
local TOKEN_MAX = 9007199254740991

-- The server's time in microseconds, one value for the whole script.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- Numbers of this size are written without an exponent only by this.
local function digits(number)
  return string.format('%.0f', number)
end

-- A command about metadata, which are decoration: what is wrong with their key must not stop a script half-way. Answers
-- false for an error.
local function describe(command, ...)
  local answer = redis.pcall(command, metadata, ...)
  return type(answer) ~= 'table' and answer
end

-- Who has the lock: 'free', 'mine' with the token, or 'others'.
local function look()
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

-- A token above all earlier ones: by the counter, and should that be lost, by the clock.
local function mint()
  local last = redis.pcall('GET', fence)
  last = type(last) == 'string' and tonumber(last) or 0
  if not (last >= 0 and last < TOKEN_MAX) then
    -- No client wrote that; it may be no number at all.
    last = 0
  end
  return math.max(last + 1, now)
end

-- Gives the free lock to a claim, with this ttl; `description` is its metadata unless it is stored already.
local function grant(to, px, description)
  local token = mint()
  if not redis.call('SET', lock, to .. ':' .. digits(token), 'NX', 'PX', px) then
    return nil
  end
  redis.call('SET', fence, digits(token), 'PX', keep)
  local last = describe('HGET', 'holder')
  if last and last ~= to then
    -- It ended without a release.
    describe('HDEL', last)
  end
  if description then
    describe('HSET', 'holder', to, to, description)
  else
    describe('HSET', 'holder', to)
  end
  describe('PEXPIRE', linger)
  return token
end

-- Lapsed waiters that one script drops at most: while a script runs, the server serves nobody else.
local LAPSED_MAX = 500

-- Gives the free lock to the first claim in the queue that is alive, and notifies its client; lapsed ones before it are
-- dropped. Answers that claim and its token; nil and whether the end of the queue was not reached.
local function hand_over()
  for _ = 1, LAPSED_MAX do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      return nil, false
    end
    local deadline, px, client = string.match(redis.call('HGET', deadlines, head) or '', '^(%d+):(%d+):(%x+)$')
    redis.call('ZREM', queue, head)
    redis.call('HDEL', deadlines, head)
    if deadline and tonumber(deadline) > now then
      local token = grant(head, px)
      if head ~= claim then
        -- A push that cannot be sent must not undo half of the hand-over: it is a hint, the next heartbeat finds out too.
        redis.pcall('PUBLISH', channel .. client, head)
      end
      return head, token
    end
    describe('HDEL', head)
  end
  return nil, true
end

-- Who has the lock after the queue has been served; 'unserved' when nobody has it, but the next waiter was not found yet.
local function serve()
  local state, token = look()
  if state ~= 'free' then
    return state, token
  end
  local head, more = hand_over()
  if head then
    return head == claim and 'mine' or 'others', more
  end
  return more and 'unserved' or 'free'
end

-- Whether the claim waits: it has a place, and a deadline. An operator may have removed either; what is left goes with
-- the claim's withdrawal.
local function queued()
  return redis.call('ZSCORE', queue, claim) and redis.call('HEXISTS', deadlines, claim) == 1
end

-- The claim goes on waiting: its deadline is one ttl from now. `state` is what `serve` answered.
--
-- A server at its memory limit (maxmemory) refuses HSET as the first write of a script, but not PEXPIRE, and refuses
-- nothing after that: who waits keeps its place.
local function stay(client, state)
  redis.call('PEXPIRE', queue, linger)
  redis.call('HSET', deadlines, claim, digits(now + ttl * 1000) .. ':' .. ttl .. ':' .. client)
  redis.call('PEXPIRE', deadlines, linger)
  describe('PEXPIRE', linger)
  return { state == 'unserved' and state or 'queued', redis.call('PTTL', lock) }
end

-- The claim holds the lock: its lifetime starts anew.
local function hold(token)
  redis.call('PEXPIRE', lock, ttl)
  return { 'granted', token }
end

