//! A node: the scripts, the expiry of keys, and its return after a restart.

use super::*;

impl State {
    pub(super) fn actions_at(&self, model: &Redlock, number: usize, actions: &mut Vec<Action>) {
        let node = &self.nodes[number];
        actions.extend((0..node.late.len()).map(|nth| Action::ExecuteLate(number, nth)));
        actions.extend(self.releases.iter().map(|claim| Action::ExecuteRelease(number, claim)));
        if node.key.is_some_and(|claim| !self.is_active(claim) || self.faults.early > 0) {
            actions.push(Action::Expire(number));
        }
        if self.faults.restarts > 0 {
            actions.push(Action::Restart(number));
        }
        if node.unmarked && node.learned.is_none() && self.may_learn(model, number) {
            actions.push(Action::Learn(number));
        }
        if node.unmarked && node.learned.is_some() {
            actions.push(Action::Mark(number));
        }
    }

    /// Executes a script. Returns the counter if the key is the claim's and the request is done.
    pub(super) fn run(
        &mut self,
        model: &Redlock,
        number: usize,
        Request { claim, kind }: Request,
    ) -> Option<u8> {
        let node = &mut self.nodes[number];
        if node.unmarked && model.has(Step::MarkerIsTested) {
            return None;
        }
        let (mine, free) = (node.key == Some(claim), node.key.is_none());
        match kind {
            RequestKind::Ask { .. } if mine => {}
            RequestKind::Ask { proposal } if free => {
                node.key = Some(claim);
                node.counter = (node.counter + 1).max(proposal);
            }
            RequestKind::Ask { .. } => return None,
            RequestKind::WriteBack { token } => {
                let is_owner = mine || !model.has(Step::WriteBackChecksOwner);
                let fits = node.counter <= token || !model.has(Step::WriteBackChecksCounter);
                if !(is_owner && fits) {
                    return None;
                }
                node.counter = token;
            }
            RequestKind::Restore { token } => {
                let fits = node.counter <= token || !model.has(Step::RestoreChecksCounter);
                if !(free && fits) {
                    return None;
                }
                node.key = Some(claim);
                if node.released.has(claim) {
                    self.broken = Some(NO_REVIVAL);
                }
            }
        }
        Some(self.nodes[number].counter)
    }

    /// Executes a request whose connection has broken. A refused one stays: it has changed nothing.
    pub(super) fn execute_late(&mut self, model: &Redlock, number: usize, nth: usize) {
        let request = self.nodes[number].late[nth];
        if self.run(model, number, request).is_some() {
            let node = &mut self.nodes[number];
            node.late.remove(nth);
            if !node.may_be_restored(request.claim) {
                node.released.remove(request.claim);
            }
        }
    }

    pub(super) fn execute_release(&mut self, model: &Redlock, number: usize, claim: ClaimNo) {
        let (token, was_restored) = (self.tokens[claim.index()], self.restored.has(claim));
        let node = &mut self.nodes[number];
        if node.key == Some(claim) {
            node.key = None;
        }
        if node.unmarked && model.has(Step::MarkerIsTested) {
            return;
        }
        if was_restored && model.has(Step::ReleaseRaisesCounter) {
            node.counter = node.counter.max(token + 1);
        }
        if node.may_be_restored(claim) {
            node.released.add(claim);
        }
    }

    /// Whether the release of this claim can have no effect here, now or later.
    pub(super) fn is_release_done(&self, number: usize, claim: ClaimNo) -> bool {
        let node = &self.nodes[number];
        let may_come = node.late.iter().any(|request| request.claim == claim);
        let may_forget = self.faults.restarts > 0 || node.unmarked;
        let is_raised = node.counter > self.tokens[claim.index()] || !self.restored.has(claim);
        is_raised && node.key != Some(claim) && !may_come && !may_forget
    }

    pub(super) fn expire(&mut self, number: usize) {
        let Some(claim) = self.nodes[number].key.take() else { return };
        if self.is_active(claim) {
            self.faults.early -= 1;
            self.expired_early = true;
        }
    }

    pub(super) fn restart(&mut self, model: &Redlock, number: usize) {
        self.faults.restarts -= 1;
        let mut waits_for = ClaimSet::default();
        (ClaimNo::all()).filter(|claim| self.is_active(*claim)).for_each(|claim| waits_for.add(claim));
        let node = &mut self.nodes[number];
        (node.key, node.counter, node.unmarked) = (None, 0, true);
        (node.waits_for, node.released) = (waits_for, ClaimSet::default());
        if model.has(Step::MarkerNamesItsNote) {
            node.learned = None;
        }
    }

    /// Whether a ttl has passed, so that every claim that relied on the node has ended or was renewed without it, and
    /// enough others are there to learn the counter from.
    fn may_learn(&self, model: &Redlock, number: usize) -> bool {
        let waited = self.nodes[number].waits_for == ClaimSet::default() || !model.has(Step::MarkerWaits);
        let needed = if model.has(Step::MarkerNeedsMajority) { MAJORITY } else { 1 };
        waited && self.others(number).count() >= needed
    }

    fn others(&self, number: usize) -> impl Iterator<Item = &Node> {
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(other, node)| *other != number && !node.unmarked)
            .map(|(_, node)| node)
    }

    pub(super) fn learn(&mut self, number: usize) {
        let highest = self.others(number).map(|node| node.counter).max();
        self.nodes[number].learned = highest;
    }

    /// Writes the marker. Another client may be about to do the same, so what was learned is kept.
    pub(super) fn mark(&mut self, model: &Redlock, number: usize) {
        let can_be_emptied = self.faults.restarts > 0;
        let node = &mut self.nodes[number];
        (node.unmarked, node.waits_for) = (false, ClaimSet::default());
        if model.has(Step::MarkerRaisesCounter) {
            node.counter = node.counter.max(node.learned.unwrap_or(0));
        }
        node.learned = node.learned.filter(|_| can_be_emptied);
    }
}

impl Node {
    fn may_be_restored(&self, claim: ClaimNo) -> bool {
        let restores =
            |request: &Request| request.claim == claim && matches!(request.kind, RequestKind::Restore { .. });
        self.late.iter().any(restores)
    }
}
