-- Returns who holds the lock, for observers. Writes nothing.
--
-- KEYS 1 the lock
--      2 the token counter
-- ARGV 1 bytes of metadata to show, at most
-- Returns {value of the lock, metadata, PTTL of the lock in ms}; the value as `holder` shows it, '' for what is missing.
local value, claim = holder(KEYS[1])
local _, metadata = last_grant(KEYS[2], ARGV[1])
return { value, claim ~= '' and metadata or '', redis.call('PTTL', KEYS[1]) }
