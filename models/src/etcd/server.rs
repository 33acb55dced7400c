//! What the server does with a request.

use super::*;

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
            What::LeaveUntold { own, .. } if created != own => return still,
            What::HandOver { own, to, .. } if created != own || !self.is_contender(to) => return still,
            _ => {}
        }
        if self.keys[key.index()].is_some_and(|key| key.by != claim) {
            self.broken = Some(NO_FOREIGN_DELETE);
        }
        let fences = what.fences() && !self.clients[claim.client()].lease_gone;
        // A transaction that changes nothing has no revision of its own.
        if self.keys[key.index()].take().is_some() || fences {
            self.revision += 1;
        }
        if fences {
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

    pub(super) fn foreign_comes(&mut self) {
        self.faults.foreign -= 1;
        self.revision += 1;
        self.created_last += 1;
        self.keys[FOREIGN.index()] = Some(Key { created: self.created_last, by: FOREIGN });
    }

    pub(super) fn foreign_goes(&mut self) {
        self.revision += 1;
        self.keys[FOREIGN.index()] = None;
        self.foreign_holds = false;
    }

    pub(super) fn is_foreign_first(&self) -> bool {
        let first = self.contenders().min_by_key(|(_, created)| *created);
        first.is_some_and(|(key, _)| key == FOREIGN)
    }

    pub(super) fn contenders(&self) -> impl Iterator<Item = Contender> + '_ {
        ClaimNo::keys().filter_map(|key| self.keys[key.index()].map(|there| (key, there.created)))
    }

    pub(super) fn is_contender(&self, (key, created): Contender) -> bool {
        self.keys[key.index()].is_some_and(|there| there.created == created)
    }

    pub(super) fn successor(&self, own: Revision) -> Option<Contender> {
        self.contenders().filter(|(_, created)| *created > own).min_by_key(|(_, created)| *created)
    }
}
