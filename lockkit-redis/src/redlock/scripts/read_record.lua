-- Reads the record of a lock. Read-only.
--
-- KEYS 1 the record
-- Returns {record or '', token up to which the node may lack records}; nothing from a node that has lost its data.
if not has_marker() then
  return {}
end
local record = redis.pcall('GET', KEYS[1])
local lost = 0
if clock() < number_in(redis.call('HGET', node, 'lost_until')) then
  lost = number_in(redis.call('HGET', node, 'lost'))
end
return { type(record) == 'string' and record or '', lost }
