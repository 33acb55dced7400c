-- What the scripts about a counter read of the node, which is the last key.
local fields = redis.call('HMGET', KEYS[#KEYS], 'marker', 'highest')

