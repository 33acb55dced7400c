//! What the server does with a request, and what the properties ask of a state.

use super::*;

/// The server.
impl State {
    pub(super) fn execute(&mut self, model: &Etcd, Request { claim, key, what }: Request) -> Left {
        let created = self.keys[key.index()].map_or(0, |key| key.created);
        let still = if created == 0 { Left::Gone } else { Left::Still(created) };
        match what {
            What::Enqueue { epoch } => {
                self.enqueue(model, claim, key, epoch);
                return still;
            }
            What::LeaveEmpty { own, .. } if created != own || self.contenders().count() > 1 => return still,
            What::HandOver { own, to, .. } if created != own || !self.is_contender(to) => return still,
            _ => {}
        }
        if self.keys[key.index()].is_some_and(|key| key.by != claim) {
            self.broken = Some(NO_FOREIGN_DELETE);
        }
        self.keys[key.index()] = None;
        self.revision += 1;
        let client = &self.clients[claim.client()];
        if what.fences() && !client.lease_gone {
            self.epoch_last[claim.client()] += 1;
            self.epochs[claim.client()] = self.epoch_last[claim.client()];
        }
        if let What::HandOver { to, .. } = what
            && !self.clients[to.0.client()].over
        {
            self.mails[to.0.client()].push(Mail { to, revision: self.revision });
        }
        Left::Done
    }

    pub(super) fn enqueue(&mut self, model: &Etcd, claim: ClaimNo, key: ClaimNo, epoch: Revision) -> Answer {
        let client = claim.client();
        let fits =
            model.waits(claim) || self.contenders().count() == 0 || !model.has(Step::TryFindsQueueEmpty);
        if self.keys[key.index()].is_none()
            && self.epochs[client] == epoch
            && fits
            && !self.clients[client].lease_gone
        {
            self.revision += 1;
            self.created_last += 1;
            self.keys[key.index()] = Some(Key { created: self.created_last, by: claim });
        }
        let own = self.keys[key.index()].map_or(0, |key| key.created);
        let mut newest: Vec<Contender> = self.contenders().collect();
        newest.sort_unstable_by_key(|(_, created)| std::cmp::Reverse(*created));
        let next = newest.get(1).copied().filter(|_| newest[0].1 == own);
        let contenders = newest.len() as u8;
        Answer { revision: self.revision, own, contenders, next, epoch: self.epochs[client] }
    }

    pub(super) fn expire(&mut self, client: usize) {
        if !self.clients[client].over {
            self.faults.lapses -= 1;
        }
        self.clients[client].lease_gone = true;
        self.revision += 1;
        self.epochs[client] = 0;
        for key in ClaimNo::all().filter(|key| key.client() == client) {
            self.keys[key.index()] = None;
        }
    }

    /// An operator deletes a key; when it was the first one, exclusion is gone until its client has heard of it.
    pub(super) fn delete(&mut self, key: ClaimNo) {
        self.faults.deletes -= 1;
        self.revision += 1;
        let Some(deleted) = self.keys[key.index()].take() else { return };
        let first = self.contenders().all(|(_, created)| created > deleted.created);
        if first {
            self.claims[deleted.by.index()].robbed = true;
        }
    }

    pub(super) fn contenders(&self) -> impl Iterator<Item = Contender> + '_ {
        ClaimNo::all().filter_map(|key| self.keys[key.index()].map(|there| (key, there.created)))
    }

    pub(super) fn is_contender(&self, (key, created): Contender) -> bool {
        self.keys[key.index()].is_some_and(|there| there.created == created)
    }

    pub(super) fn successor(&self, own: Revision) -> Option<Contender> {
        self.contenders().filter(|(_, created)| *created > own).min_by_key(|(_, created)| *created)
    }
}

/// What the properties ask.
impl State {
    pub(super) fn is_there(&self, claim: &Claim) -> bool {
        claim.key.is_some_and(|key| self.is_contender((key, claim.own)))
    }

    /// Who believes to hold the lock, but for those whom an operator has robbed of it: they hear of it by a beat.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held && !claim.robbed)
    }

    pub(super) fn has_overtaken(&self) -> bool {
        let waiters =
            || self.claims.iter().filter(|claim| claim.phase == Phase::Waiting && self.is_there(claim));
        self.holders().any(|holder| waiters().any(|waiter| waiter.own < holder.own))
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let rests = |claim: &Claim| {
            claim.call == Call::Idle
                && matches!(claim.phase, Phase::New | Phase::Waiting | Phase::Held | Phase::Ended)
        };
        self.strays.is_empty()
            && self.mails.iter().all(|mails| mails.is_empty())
            && self.claims.iter().all(rests)
    }

    pub(super) fn has_orphan(&self) -> bool {
        self.keys.iter().flatten().any(|key| {
            !self.clients[key.by.client()].over && self.claims[key.by.index()].phase == Phase::Ended
        })
    }

    /// Whether somebody waits, nobody holds the lock or will end, and no waiter has a reason to look.
    pub(super) fn is_stuck(&self, model: &Etcd) -> bool {
        let mut waiters =
            ClaimNo::all().filter(|claim| self.claims[claim.index()].phase == Phase::Waiting).peekable();
        let over = self.clients.iter().any(|client| client.over && !client.lease_gone);
        let held = self.claims.iter().any(|claim| claim.phase == Phase::Held);
        let mut ends = |number: ClaimNo| {
            let claim = &self.claims[number.index()];
            let first = self.contenders().all(|(_, created)| created >= claim.own);
            let mut actions = Vec::new();
            self.actions_of_waiter(model, number, &mut actions);
            !actions.is_empty() && (first || !self.is_there(claim))
        };
        waiters.peek().is_some() && !held && !over && !waiters.any(&mut ends)
    }
}
