-- The state of this node. Read-only.
--
-- Returns {marker or '', highest counter, names, how long records last in us}.
return state()
