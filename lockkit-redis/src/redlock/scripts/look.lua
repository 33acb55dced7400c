-- The state of this node. Read-only.
--
-- Returns {marker or '', highest counter, names}.
return state()
