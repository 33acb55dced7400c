-- What this node knows of itself. Writes nothing.
--
-- Answers {marker or '', highest counter, names}.
return state()
