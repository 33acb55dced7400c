//! The server: requests, the end of leases, operators and other programs.

use super::*;

impl State {
    pub(super) fn execute(&mut self, model: &Etcd, Request { claim, key, kind }: Request) -> Deletion {
        let created = self.keys[key.index()].map_or(0, |key| key.created);
        let still = if created == 0 { Deletion::KeyGone } else { Deletion::KeyRemains(created) };
        match kind {
            RequestKind::Enqueue { epoch } => {
                self.enqueue(model, claim, key, epoch);
                return still;
            }
            RequestKind::LeaveEmpty { own, .. } if created != own || self.contenders().count() > 1 => {
                return still;
            }
            RequestKind::LeaveWithoutHandoff { own, .. } if created != own => return still,
            RequestKind::LeaveWithHandoff { own, .. } if created != own => return still,
            RequestKind::LeaveWithHandoff { handoff, .. }
                if !self.is_contender(handoff.to) && model.has(Step::HandoffComparesReceiver) =>
            {
                return still;
            }
            _ => {}
        }
        if self.keys[key.index()].is_some_and(|key| key.by != claim) {
            self.broken = Some(NO_FOREIGN_DELETE);
        }
        let bumps = kind.bumps() && !self.clients[claim.client()].lease_gone;
        self.keys[key.index()] = None;
        if bumps {
            self.epoch_last[claim.client()] += 1;
            self.epochs[claim.client()] = self.epoch_last[claim.client()];
        }
        if let RequestKind::LeaveWithHandoff { handoff, .. } = kind {
            let receiver = handoff.to.0.client();
            if receiver != claim.client() && !self.clients[receiver].session_ended {
                self.handoffs[receiver].push(handoff);
            }
        }
        Deletion::Done
    }

    pub(super) fn enqueue(
        &mut self,
        model: &Etcd,
        claim: ClaimNo,
        key: ClaimNo,
        epoch: Revision,
    ) -> EnqueueReply {
        let client = claim.client();
        let fits =
            model.waits(claim) || self.contenders().count() == 0 || !model.has(Step::TryNeedsEmptyQueue);
        if self.keys[key.index()].is_none()
            && self.epochs[client] == epoch
            && fits
            && !self.clients[client].lease_gone
        {
            self.created_last += 1;
            self.keys[key.index()] = Some(Key { created: self.created_last, by: claim });
        }
        let own = self.keys[key.index()].map_or(0, |key| key.created);
        let contenders = self.contenders().count() as u8;
        EnqueueReply { own, contenders, epoch: self.epochs[client] }
    }

    pub(super) fn expire(&mut self, client: usize) {
        if !self.clients[client].session_ended {
            self.faults.lapses -= 1;
        }
        self.clients[client].lease_gone = true;
        self.epochs[client] = 0;
        for key in ClaimNo::all().filter(|key| key.client() == client) {
            self.keys[key.index()] = None;
        }
    }

    /// An operator deletes a key. If it was the first one, exclusion is not promised until its client has noticed.
    pub(super) fn delete(&mut self, key: ClaimNo) {
        self.faults.deletes -= 1;
        let Some(deleted) = self.keys[key.index()].take() else { return };
        let first = self.contenders().all(|(_, created)| created > deleted.created);
        if first {
            self.claims[deleted.by.index()].evicted = true;
        }
    }

    pub(super) fn foreign_comes(&mut self) {
        self.faults.foreign -= 1;
        self.created_last += 1;
        self.keys[ClaimNo::FOREIGN.index()] = Some(Key { created: self.created_last, by: ClaimNo::FOREIGN });
    }

    pub(super) fn foreign_goes(&mut self) {
        self.keys[ClaimNo::FOREIGN.index()] = None;
        self.foreign_holds = false;
    }

    pub(super) fn is_foreign_first(&self) -> bool {
        let first = self.contenders().min_by_key(|(_, created)| *created);
        first.is_some_and(|(key, _)| key == ClaimNo::FOREIGN)
    }

    pub(super) fn contenders(&self) -> impl Iterator<Item = Contender> + '_ {
        ClaimNo::all()
            .chain([ClaimNo::FOREIGN])
            .filter_map(|key| self.keys[key.index()].map(|there| (key, there.created)))
    }

    pub(super) fn is_contender(&self, (key, created): Contender) -> bool {
        self.keys[key.index()].is_some_and(|there| there.created == created)
    }

    pub(super) fn successor(&self, own: Revision) -> Option<Contender> {
        self.contenders().filter(|(_, created)| *created > own).min_by_key(|(_, created)| *created)
    }
}
