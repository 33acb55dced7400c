-- Ends a claim in any state: removes its entry in the queue and its hold. The lock is granted to the next waiter, also
-- when it was free already. A later grant is never touched: it has another claim. `let_go` has served it already if the
-- claim holds the lock and nobody waits.
--
-- ARGV 4 the channel of observers, if the claim takes part in an election
-- Returns the sum of 1 if the claim held the lock, and of 2 if the next waiter was not found yet: then the request must be
-- repeated.
local state = is_mine and 'mine' or lock_state()
if state ~= 'mine' then
  read('ZSCORE', queue, claim)
  read('HEXISTS', lapses, claim)
  leave_queue(claim)
end
local head, more
if state ~= 'others' then
  head, more = handoff()
end
if state == 'mine' and not head then
  free()
end
if state == 'mine' or head then
  notify_observers(ARGV[4])
end
return (state == 'mine' and 1 or 0) + (not head and more and 2 or 0)
