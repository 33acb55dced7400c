-- Returns the record of a lock, or nil.
--
-- KEYS 1 the record
return redis.call('GET', KEYS[1])
