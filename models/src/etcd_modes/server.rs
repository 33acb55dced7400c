//! The server, and the rule that admits claims.

use super::*;

impl State {
    /// Creates the claim's key unless an earlier copy has, and reads the queue.
    pub(super) fn enqueue(&mut self, model: &EtcdModes, number: ClaimNo) {
        let key = &mut self.keys[number.index()];
        if *key == 0 {
            self.revision += 1;
            self.created_last += 1;
            *key = self.created_last;
            self.claims[number.index()].evicted = false;
        }
        let own = self.keys[number.index()];
        let claim = self.claims[number.index()];
        let is_admitted = claim.phase == Phase::Counted || self.is_admitted(model, number, own);
        let reply = EnqueueReply { revision: self.revision, own, is_admitted };
        self.claims[number.index()] = Claim { phase: Phase::Enqueueing, reply: Some(reply), ..claim };
    }

    /// Deletes the claim's key and reads the queue behind it. Returns the keys that the claim must hand off to.
    pub(super) fn delete(&mut self, model: &EtcdModes, number: ClaimNo) -> [Revision; CLAIMS] {
        let before = self.admitted(model);
        let existed = std::mem::take(&mut self.keys[number.index()]) > 0;
        let mut admits = self.admitted(model);
        if existed {
            self.revision += 1;
            for (admits, before) in admits.iter_mut().zip(before) {
                *admits = if before > 0 { 0 } else { *admits };
            }
        }
        let Claim { token, mode, .. } = self.claims[number.index()];
        let hands_off = (existed || model.has(Step::RepetitionHandsOff))
            && (token == 0 || mode != Mode::SHARED || model.has(Step::SharedHoldHandsOff))
            && (token > 0 || model.has(Step::WithdrawalHandsOff));
        if !hands_off {
            return [0; CLAIMS];
        }
        if !model.has(Step::HandsOffToAll) {
            let first = admits.iter().copied().filter(|created| *created > 0).min();
            admits = admits.map(|created| if Some(created) == first { created } else { 0 });
        }
        admits
    }

    /// Writes the handoffs. The server refuses those to an ended lease; claims that do not wait ignore them.
    pub(super) fn hand_off(&mut self, model: &EtcdModes, number: ClaimNo) {
        let Claim { admits, admitted_at, .. } = self.claims[number.index()];
        self.revision += 1;
        let token = if model.has(Step::HandoffNamesAdmission) { admitted_at } else { self.revision };
        for to in ClaimNo::all().filter(|to| admits[to.index()] > 0) {
            let waits = matches!(self.claims[to.index()].phase, Phase::Enqueueing | Phase::Waiting);
            if waits && !self.clients[to.client()].lease_gone && self.handoffs[to.index()].is_none() {
                self.handoffs[to.index()] = Some(Handoff { created: admits[to.index()], token });
            }
        }
    }

    pub(super) fn expire(&mut self, client: usize) {
        if !self.clients[client].session_ended {
            self.faults.lapses -= 1;
        }
        self.clients[client].lease_gone = true;
        self.revision += 1;
        for key in ClaimNo::all().filter(|key| key.client() == client) {
            self.keys[key.index()] = 0;
        }
    }

    /// An operator deletes a key. If its claim was admitted, its limit is not promised until its client has noticed.
    pub(super) fn operator_deletes(&mut self, model: &EtcdModes, number: ClaimNo) {
        self.faults.deletes -= 1;
        self.revision += 1;
        self.claims[number.index()].evicted = self.admitted(model)[number.index()] > 0;
        self.keys[number.index()] = 0;
    }

    /// Returns the keys that a read of the queue shows as admitted, by claim; 0 for the others.
    pub(super) fn admitted(&self, model: &EtcdModes) -> [Revision; CLAIMS] {
        let mut admitted = self.keys;
        for claim in ClaimNo::all() {
            let created = &mut admitted[claim.index()];
            if *created > 0 && !self.is_admitted(model, claim, *created) {
                *created = 0;
            }
        }
        admitted
    }

    pub(super) fn is_admitted(&self, model: &EtcdModes, number: ClaimNo, own: Revision) -> bool {
        let mode = self.mode(number);
        let others = || ClaimNo::all().filter(|claim| *claim != number && self.keys[claim.index()] > 0);
        let before = || others().filter(|claim| self.keys[claim.index()] < own).map(|claim| self.mode(claim));
        let first = others().min_by_key(|claim| self.keys[claim.index()]);
        let is_first_shared = first.is_none_or(|first| self.mode(first) == Mode::SHARED);
        if !model.has(Step::CountsThoseBefore) {
            mode.is_admitted_behind(others().map(|claim| self.mode(claim)))
        } else if !model.has(Step::HeedsLimitsBefore) {
            mode.alone_admits(before().count())
        } else if !model.has(Step::CountsWaiters) && mode == Mode::SHARED && is_first_shared {
            true
        } else {
            mode.is_admitted_behind(before())
        }
    }

    fn mode(&self, claim: ClaimNo) -> Mode {
        self.claims[claim.index()].mode
    }
}
