-- What this node has for a marker, and its highest counter. Writes nothing.
--
-- Answers {marker or '', highest counter}.
return { redis.call('HGET', node, 'marker') or '', highest() }
