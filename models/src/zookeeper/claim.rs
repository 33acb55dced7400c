//! A claim: `acquire.rs` and `release.rs` of the backend.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &ZooKeeper, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        let may_start = number.may_start(|earlier| self.claims[earlier.index()].phase == Phase::New);
        let may_lose = self.faults.lost > 0;
        match claim.phase {
            Phase::New if may_start => actions.push(Action::Start(number)),
            Phase::New | Phase::Ended => {}
            Phase::Creating => {
                actions.push(Action::Create(number));
                if may_lose {
                    actions.extend([Action::LoseCreate(number, true), Action::LoseCreate(number, false)]);
                }
            }
            Phase::LookingUp => actions.push(Action::LookUp(number)),
            Phase::Listing => {
                actions.push(Action::List(number));
                if self.faults.late > 0 && self.is_first(model, number) {
                    actions.push(Action::ListLate(number));
                }
            }
            Phase::Listed => actions.push(Action::ReceiveLate(number)),
            Phase::Waiting => self.actions_of_waiter(model, number, actions),
            Phase::Held => actions.push(Action::Release(number)),
            Phase::Deleting => {
                actions.push(Action::Delete(number));
                if may_lose {
                    actions.extend([Action::LoseDelete(number, true), Action::LoseDelete(number, false)]);
                }
            }
        }
        if self.faults.refusals > 0 && self.may_refuse(number) {
            actions.push(Action::Refuse(number));
        }
        let gives_up = matches!(
            claim.phase,
            Phase::Creating | Phase::LookingUp | Phase::Listing | Phase::Listed | Phase::Waiting
        );
        if self.faults.cancels > 0 && gives_up && !claim.given_up {
            actions.push(Action::GiveUp(number));
        }
    }

    pub(super) fn actions_of_waiter(&self, model: &ZooKeeper, number: ClaimNo, actions: &mut Vec<Action>) {
        let view = &self.clients[number.client()].view;
        let Claim { own, predecessor, event_lost, .. } = self.claims[number.index()];
        let is_own_gone = own.is_some_and(|own| !view.contains(&own));
        let is_predecessor_gone =
            predecessor.is_some_and(|before| !view.iter().any(|node| node.number == before));
        // Otherwise the re-check finds nothing new.
        if model.has(Step::Recheck) && (is_own_gone || is_predecessor_gone) {
            actions.push(Action::Recheck(number));
        }
        if is_predecessor_gone && !event_lost {
            actions.push(Action::Notify(number));
            if self.faults.lost > 0 {
                actions.push(Action::LoseEvent(number));
            }
        }
    }

    /// Whether a heartbeat of this client changes anything.
    pub(super) fn heartbeats(&self, client: usize) -> bool {
        let mut held =
            self.claims.iter().skip(2 * client).take(2).filter(|claim| claim.phase == Phase::Held).peekable();
        held.peek().is_some()
            && (self.clients[client].view != self.nodes
                || held.any(|claim| claim.own.is_none_or(|own| !self.nodes.contains(&own))))
    }

    /// A check goes through the leader; the nodes of the holds are read after it.
    pub(super) fn heartbeat(&mut self, model: &ZooKeeper, client: usize) {
        if model.has(Step::HoldsReadAfterCheck) {
            self.clients[client].view = self.nodes;
        }
        let view = self.clients[client].view;
        for claim in self.claims.iter_mut().skip(2 * client).take(2) {
            match claim.own {
                _ if claim.phase != Phase::Held => {}
                // The hold is valid from now on, whatever an operator did before.
                Some(own) if view.contains(&own) => claim.evicted = false,
                _ => claim.phase = Phase::Deleting,
            }
        }
    }

    /// Two nodes are looked up by name.
    pub(super) fn recheck(&mut self, number: ClaimNo) {
        let view = self.clients[number.client()].view;
        let claim = self.claim(number);
        // If the predecessor is gone, the list is read.
        claim.phase = match claim.own.is_some_and(|own| view.contains(&own)) {
            true => Phase::Listing,
            false => Phase::Deleting,
        };
        (claim.predecessor, claim.event_lost) = (None, false);
    }

    /// A refusal in the second session would end it, and there is no third one here.
    fn may_refuse(&self, number: ClaimNo) -> bool {
        match self.claims[number.index()].phase {
            Phase::Creating | Phase::Listing | Phase::Waiting => true,
            Phase::LookingUp | Phase::Deleting => !self.clients[number.client()].second_session,
            Phase::New | Phase::Listed | Phase::Held | Phase::Ended => false,
        }
    }

    pub(super) fn refuse(&mut self, model: &ZooKeeper, number: ClaimNo) {
        self.faults.refusals -= 1;
        match self.claim(number).phase {
            // Nothing was created, or the look-up would have found it.
            Phase::Creating => self.forget(number),
            Phase::LookingUp | Phase::Deleting => {
                if model.has(Step::RefusalEndsSession) {
                    self.end_session(model, number.client());
                }
                self.forget(number);
            }
            _ => self.claim(number).phase = Phase::Deleting,
        }
    }

    pub(super) fn claim(&mut self, claim: ClaimNo) -> &mut Claim {
        &mut self.claims[claim.index()]
    }

    pub(super) fn session_of(&self, claim: ClaimNo) -> Session {
        (claim.client(), self.clients[claim.client()].second_session)
    }

    /// The leader has answered: the client's server has no older state.
    pub(super) fn sync_with_leader(&mut self, claim: ClaimNo) {
        self.clients[claim.client()].view = self.nodes;
    }

    pub(super) fn created(&mut self, number: ClaimNo, own: Node) {
        self.sync_with_leader(number);
        let claim = self.claim(number);
        claim.own = Some(own);
        claim.phase = if claim.given_up { Phase::Deleting } else { Phase::Listing };
    }

    pub(super) fn look_up(&mut self, model: &ZooKeeper, number: ClaimNo) {
        if model.has(Step::LookUpAfterLeader) {
            self.sync_with_leader(number);
        }
        let session = self.session_of(number);
        let view = self.clients[number.client()].view;
        let is_own = |node: &&Node| {
            node.claim == number && (node.session == session || !model.has(Step::OwnerIsThisSession))
        };
        let found = view.iter().find(is_own).copied();
        let claim = self.claim(number);
        claim.own = found;
        claim.phase = match (found, claim.given_up) {
            (Some(_), true) => Phase::Deleting,
            (Some(_), false) => Phase::Listing,
            (None, true) => return self.forget(number),
            (None, false) => Phase::Creating,
        };
    }

    pub(super) fn list(&mut self, model: &ZooKeeper, number: ClaimNo) {
        let view = self.clients[number.client()].view;
        let Some(own) = self.claim(number).own else { return };
        if !view.contains(&own) && model.has(Step::ListShowsOwnNode) {
            self.claim(number).phase = Phase::Deleting;
            return;
        }
        match self.nearest_before(model, number) {
            None => self.grant(model, number),
            predecessor => {
                let claim = self.claim(number);
                (claim.phase, claim.predecessor) = (Phase::Waiting, predecessor);
            }
        }
    }

    /// The list shows the claim as the first, and is on its way.
    pub(super) fn list_late(&mut self, number: ClaimNo) {
        self.faults.late -= 1;
        self.claim(number).phase = Phase::Listed;
    }

    fn is_first(&self, model: &ZooKeeper, number: ClaimNo) -> bool {
        let shows_own = |own| self.clients[number.client()].view.contains(&own);
        self.claims[number.index()].own.is_some_and(shows_own) && self.nearest_before(model, number).is_none()
    }

    /// The node right before the claim's in a list read now.
    fn nearest_before(&self, model: &ZooKeeper, number: ClaimNo) -> Option<u8> {
        let view = &self.clients[number.client()].view;
        let own = self.claims[number.index()].own?;
        let before = || view.iter().filter(|node| model.is_before(node.number, own.number));
        let nearest = before().find(|node| !before().any(|other| model.is_before(node.number, other.number)));
        nearest.map(|node| node.number)
    }

    pub(super) fn notify(&mut self, model: &ZooKeeper, number: ClaimNo) {
        let claim = self.claim(number);
        (claim.predecessor, claim.event_lost) = (None, false);
        match model.has(Step::ListAfterPredecessor) {
            true => claim.phase = Phase::Listing,
            false => self.grant(model, number),
        }
    }

    pub(super) fn give_up(&mut self, model: &ZooKeeper, number: ClaimNo) {
        self.faults.cancels -= 1;
        let claim = self.claim(number);
        claim.given_up = true;
        match claim.phase {
            Phase::Creating => self.forget(number),
            Phase::LookingUp if model.has(Step::CancelAwaitsCreate) => {}
            Phase::LookingUp => self.forget(number),
            _ => claim.phase = Phase::Deleting,
        }
    }

    pub(super) fn grant(&mut self, model: &ZooKeeper, number: ClaimNo) {
        let Some(own) = self.claim(number).own else { return };
        let token = if model.has(Step::TokenIsZxid) { own.czxid } else { own.number + 1 };
        if !self.tokens.grant(number, token) {
            self.broken = Some(TOKENS_RISE);
        }
        let claim = self.claim(number);
        (claim.phase, claim.predecessor) = (Phase::Held, None);
    }

    pub(super) fn forget(&mut self, number: ClaimNo) {
        *self.claim(number) = Claim { phase: Phase::Ended, ..Claim::default() };
        self.tokens.end(number);
    }

    pub(super) fn forget_old_tokens(&mut self) {
        let phase = |claim: ClaimNo| self.claims[claim.index()].phase;
        let acquires = |claim| !matches!(phase(claim), Phase::New | Phase::Held | Phase::Ended);
        self.tokens.forget_old(acquires, |claim| phase(claim) == Phase::Ended);
    }

    /// Holds and waiting claims end. A claim whose create was not answered continues in the second session.
    pub(super) fn end_session(&mut self, model: &ZooKeeper, client: usize) {
        self.clients[client].second_session = true;
        for claim in ClaimNo::all() {
            let phase = self.claim(claim).phase;
            let stays = match phase {
                Phase::New | Phase::Creating | Phase::LookingUp => true,
                Phase::Listed => !model.has(Step::DeadlineOfLateGrants),
                _ => false,
            };
            if claim.client() == client && !stays {
                self.forget(claim);
            }
        }
    }
}
