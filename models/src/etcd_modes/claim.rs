//! A claim, as its client drives it.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &EtcdModes, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        let Client { session_ended, lease_gone } = self.clients[number.client()];
        if session_ended || number.index() >= model.count() {
            return;
        }
        let may_start = number.may_start(|earlier| self.claims[earlier.index()].phase == Phase::New);
        match claim.phase {
            Phase::New if may_start => {
                actions.extend(model.modes().map(|mode| Action::Start(number, mode)));
            }
            Phase::New | Phase::Ended => {}
            Phase::Enqueueing if claim.reply.is_some() => {
                actions.push(Action::Receive(number));
                if self.faults.lost > 0 {
                    actions.push(Action::LoseReply(number));
                }
            }
            Phase::Enqueueing | Phase::Counted if lease_gone => {}
            Phase::Enqueueing if !model.has(Step::CountsWithEnqueue) => {
                actions.extend([Action::Enqueue(number), Action::ReadQueue(number)]);
            }
            Phase::Enqueueing | Phase::Counted => actions.push(Action::Enqueue(number)),
            Phase::Waiting if model.waiters_recheck() && self.recheck_changes(model, number) => {
                actions.push(Action::Recheck(number));
            }
            Phase::Waiting => {}
            Phase::Held if self.keys[number.index()] == 0 => {
                actions.extend([Action::Release(number), Action::Miss(number)]);
            }
            Phase::Held => actions.push(Action::Release(number)),
            Phase::Leaving if !model.has(Step::QueueReadWithDeletion) => {
                actions.push(Action::ReadQueue(number));
            }
            Phase::Leaving | Phase::Deleting => {
                actions.push(Action::Delete(number));
                if self.faults.lost > 0 && claim.phase == Phase::Leaving {
                    actions.push(Action::DeleteUnanswered(number));
                }
            }
            Phase::HandingOff => actions.push(Action::HandOff(number)),
        }
        if self.handoffs[number.index()].is_some() {
            actions.push(Action::Deliver(number));
            if self.faults.lost > 0 && !model.is(HANDOFFS_ALONE) {
                actions.push(Action::LoseHandoff(number));
            }
        }
        let acquiring = matches!(claim.phase, Phase::Enqueueing | Phase::Waiting);
        if acquiring && !claim.given_up && self.faults.cancels > 0 {
            actions.push(Action::GiveUp(number));
        }
    }

    pub(super) fn start(&mut self, number: ClaimNo, mode: Mode) {
        self.claims[number.index()] = Claim { phase: Phase::Enqueueing, mode, ..Claim::default() };
    }

    /// The reply to the enqueue arrives.
    pub(super) fn receive(&mut self, model: &EtcdModes, number: ClaimNo) {
        let claim = &mut self.claims[number.index()];
        let Some(EnqueueReply { revision, own, is_admitted }) = claim.reply.take() else { return };
        let early = claim.early_handoff.take();
        let early = early.filter(|early| early.created == own || !model.has(Step::HandoffNamesKey));
        claim.own = own;
        claim.in_doubt = false;
        if claim.given_up {
            (claim.phase, claim.given_up) = (Phase::Leaving, false);
        } else if let Some(early) = early {
            self.grant(number, early.token);
        } else if is_admitted {
            self.grant(number, revision);
        } else {
            claim.phase = Phase::Waiting;
        }
    }

    pub(super) fn lose_reply(&mut self, number: ClaimNo) {
        self.faults.lost -= 1;
        let claim = &mut self.claims[number.index()];
        (claim.reply, claim.in_doubt) = (None, true);
        if std::mem::take(&mut claim.given_up) {
            claim.phase = Phase::Leaving;
        }
    }

    pub(super) fn deliver(&mut self, model: &EtcdModes, number: ClaimNo) {
        let Some(handoff) = self.handoffs[number.index()].take() else { return };
        let claim = &mut self.claims[number.index()];
        let counts = handoff.created == claim.own || !model.has(Step::HandoffNamesKey);
        match claim.phase {
            Phase::Enqueueing => claim.early_handoff = Some(handoff),
            Phase::Waiting if counts => self.grant(number, handoff.token),
            _ => {}
        }
    }

    pub(super) fn lose_handoff(&mut self, number: ClaimNo) {
        self.faults.lost -= 1;
        self.handoffs[number.index()] = None;
    }

    fn recheck_changes(&self, model: &EtcdModes, number: ClaimNo) -> bool {
        let own = self.claims[number.index()].own;
        self.misses_key(model, number) || self.is_admitted(model, number, own)
    }

    /// Whether a read of the queue shows that the claim has no key.
    fn misses_key(&self, model: &EtcdModes, number: ClaimNo) -> bool {
        self.keys[number.index()] == 0 && model.has(Step::ReadFindsOwnKey)
    }

    pub(super) fn recheck(&mut self, model: &EtcdModes, number: ClaimNo) {
        let own = self.claims[number.index()].own;
        if self.misses_key(model, number) {
            self.claims[number.index()].phase = Phase::Leaving;
        } else if self.is_admitted(model, number, own) {
            self.grant(number, self.revision);
        }
    }

    /// `acquire` returns a grant.
    fn grant(&mut self, number: ClaimNo, token: Revision) {
        let claim = &mut self.claims[number.index()];
        (claim.phase, claim.token) = (Phase::Held, token);
        self.grants += 1;
        let Claim { own, mode, .. } = *claim;
        let excluded = |other: &&Claim| other.token > 0 && other.own != own && mode.excludes(other.mode);
        let rises = |other: &Claim| other.token != token && (other.own < own) == (other.token < token);
        if !self.claims.iter().filter(excluded).all(rises) {
            self.broken = Some(TOKENS_RISE);
        }
    }

    pub(super) fn give_up(&mut self, number: ClaimNo) {
        self.faults.cancels -= 1;
        let claim = &mut self.claims[number.index()];
        match claim.phase {
            Phase::Enqueueing if claim.reply.is_some() => claim.given_up = true,
            Phase::Enqueueing if !claim.in_doubt => self.end(number),
            _ => claim.phase = Phase::Leaving,
        }
    }

    pub(super) fn read_queue(&mut self, model: &EtcdModes, number: ClaimNo) {
        if self.claims[number.index()].phase == Phase::Enqueueing {
            if self.is_admitted(model, number, Revision::MAX) {
                self.claims[number.index()].phase = Phase::Counted;
            }
            return;
        }
        let mut after = *self;
        let admits = after.delete(model, number);
        let claim = &mut self.claims[number.index()];
        (claim.phase, claim.admits) = (Phase::Deleting, admits);
    }

    /// The key is deleted, and the reply arrives.
    pub(super) fn leave(&mut self, model: &EtcdModes, number: ClaimNo) {
        let read_before = self.claims[number.index()].phase == Phase::Deleting;
        let admits = self.delete(model, number);
        let claim = &mut self.claims[number.index()];
        if !read_before {
            claim.admits = admits;
        }
        (claim.phase, claim.admitted_at) = (Phase::HandingOff, self.revision);
        if claim.admits == [0; CLAIMS] {
            self.end(number);
        }
    }

    pub(super) fn leave_unanswered(&mut self, model: &EtcdModes, number: ClaimNo) {
        self.faults.lost -= 1;
        self.delete(model, number);
    }

    pub(super) fn end(&mut self, number: ClaimNo) {
        self.handoffs[number.index()] = None;
        let Claim { mode, own, token, .. } = self.claims[number.index()];
        self.claims[number.index()] = Claim { phase: Phase::Ended, mode, own, token, ..Claim::default() };
    }

    /// Forgets of ended claims what no later token is compared with. A claim whose key is not created yet will have a
    /// later key than all of them and, because a create raises the revision, a higher token.
    pub(super) fn forget_ended(&mut self) {
        let in_queue = |claim: ClaimNo| {
            let Claim { phase, reply, .. } = self.claims[claim.index()];
            let is_known = reply.is_some() || self.keys[claim.index()] > 0;
            phase == Phase::Waiting || phase == Phase::Enqueueing && is_known
        };
        let is_compared = ClaimNo::all().any(in_queue);
        for (claim, key) in self.claims.iter_mut().zip(self.keys) {
            let is_ended = claim.phase == Phase::Ended;
            if is_ended && (claim.token == 0 || !is_compared) {
                // The mode belongs to the key as well, which may outlive the session.
                let mode = if key > 0 { claim.mode } else { Mode::default() };
                *claim = Claim { phase: Phase::Ended, mode, ..Claim::default() };
            }
        }
    }

    /// The client ends its session; the lease may still exist.
    pub(super) fn end_session(&mut self, client: usize) {
        self.faults.lapses -= 1;
        self.clients[client].session_ended = true;
        for claim in ClaimNo::all().filter(|claim| claim.client() == client) {
            self.end(claim);
        }
    }
}
