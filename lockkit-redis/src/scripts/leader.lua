-- Returns who holds the lock, for observers. Writes nothing.
--
-- KEYS 1 the lock
--      2 the metadata
-- ARGV 1 bytes of metadata to show, at most
-- Returns {value of the lock, metadata, PTTL of the lock in ms}; the value as `holder` shows it, '' for what is missing.
local value, claim = holder(KEYS[1])
return { value, description(KEYS[2], claim, ARGV[1]), redis.call('PTTL', KEYS[1]) }
