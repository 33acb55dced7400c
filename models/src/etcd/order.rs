//! Who comes after a hold: `order.rs` of the backend.

use super::*;

impl Order {
    /// Returns the successor of a hold; `None` if it is not known. Forgets those in front of it.
    fn successor(&mut self, own: Revision) -> Option<Contender> {
        if own < self.after {
            return None;
        }
        while self.keys.first().is_some_and(|(_, created)| *created <= own) {
            self.keys.remove(0);
        }
        if self.keys.is_empty() {
            *self = Self::default();
        }
        self.keys.first().copied()
    }

    fn contains(&self, other: &Self) -> bool {
        let last = |order: &Self| order.keys.last().map(|(_, created)| *created);
        self.after <= other.after && last(self) >= last(other)
    }

    pub(super) fn learn(&mut self, other: Self) {
        if !other.keys.is_empty() && !self.contains(&other) {
            *self = other;
        }
    }
}

impl State {
    /// Whether a release of this hold reads nothing.
    pub(super) fn knows_successor(&self, claim: &Claim, client: usize) -> bool {
        let mut order = self.clients[client].order;
        order.successor(claim.own).is_some()
    }

    /// Returns to whom a release passes the lock, with those who come after it: as the client knows it, or by a read.
    pub(super) fn next_of(&mut self, client: usize, own: Revision) -> Option<Handoff> {
        if self.clients[client].order.successor(own).is_none() {
            let read = self.order_behind(own);
            self.clients[client].order.learn(read);
        }
        let order = &mut self.clients[client].order;
        let to = order.successor(own)?;
        let mut next = order.keys;
        next.remove(0);
        Some(Handoff { to, next })
    }

    fn order_behind(&self, own: Revision) -> Order {
        let mut behind: Vec<Contender> = self.contenders().filter(|(_, created)| *created > own).collect();
        behind.sort_unstable_by_key(|(_, created)| *created);
        let mut order = Order { after: own, keys: Few::default() };
        behind.into_iter().for_each(|contender| order.keys.push(contender));
        order
    }

    /// Returns the nearest earlier claim of the same client in the queue.
    pub(super) fn own_in_front(&self, number: ClaimNo) -> Option<Contender> {
        let own = self.claims[number.index()].own;
        let in_front = |other: &ClaimNo| {
            let claim = &self.claims[other.index()];
            other.client() == number.client()
                && matches!(claim.phase, Phase::Waiting | Phase::Held)
                && claim.own < own
        };
        let nearest = ClaimNo::all().filter(in_front).max_by_key(|other| self.claims[other.index()].own)?;
        let nearest = &self.claims[nearest.index()];
        Some((nearest.key?, nearest.own))
    }
}
