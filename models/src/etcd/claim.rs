//! A claim: `acquire.rs` and `release.rs` of the backend.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &Etcd, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        if self.clients[number.client()].session_ended {
            if let Call::Enqueued(_) = claim.call {
                actions.push(Action::Receive(number));
            }
            return;
        }
        match claim.call {
            Call::Idle => {}
            Call::Sent(_) => actions.push(Action::Execute(number)),
            Call::Enqueued(_) => actions.push(Action::Receive(number)),
        }
        if claim.call != Call::Idle && self.faults.lost > 0 {
            actions.push(Action::LoseReply(number));
        }
        let idle = claim.call == Call::Idle;
        let may_start = number.may_start(|earlier| self.claims[earlier.index()].phase == Phase::New);
        match claim.phase {
            Phase::New if number.index() >= model.count() => {}
            Phase::New if may_start => actions.push(Action::Start(number)),
            Phase::New | Phase::Ended => {}
            Phase::Enqueueing | Phase::Finishing | Phase::Withdrawing | Phase::Leaving if idle => {
                actions.push(Action::Send(number));
                if claim.phase == Phase::Enqueueing && !claim.given_up && self.faults.lost > 0 {
                    actions.push(Action::SendLate(number));
                }
                let reads = !claim.alone && !self.knows_successor(claim, number.client());
                if claim.phase == Phase::Leaving && reads && self.successor(claim.own).is_some() {
                    actions.push(Action::SendAfterStaleRead(number));
                }
            }
            Phase::Waiting => self.actions_of_waiter(model, number, actions),
            Phase::Held => {
                actions.push(Action::Release(number));
                if !self.has_own_key(claim) {
                    actions.push(Action::Miss(number));
                }
            }
            _ => {}
        }
        if self.faults.refusals > 0 && self.may_refuse(claim) {
            actions.push(Action::Refuse(number));
        }
        let acquiring = matches!(claim.phase, Phase::Enqueueing | Phase::Waiting);
        if acquiring && !claim.given_up && self.faults.cancels > 0 {
            actions.push(Action::GiveUp(number));
        }
    }

    pub(super) fn actions_of_waiter(&self, model: &Etcd, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        let has_gone = |contender| !self.is_contender(contender);
        let misses = model.has(Step::Recheck) && !self.finds_both_keys(model, claim);
        if claim.notified || !claim.looked || misses {
            actions.push(Action::Recheck(number));
        }
        if model.has_events() && claim.predecessor.is_some_and(has_gone) && !claim.notified {
            actions.extend([Action::Notify(number), Action::LoseEvent(number)]);
        }
    }

    /// The re-check: whether it finds the claim's own key and the predecessor's.
    fn finds_both_keys(&self, model: &Etcd, claim: &Claim) -> bool {
        let exists = |contender: Contender| match model.has(Step::RecheckComparesRevisions) {
            true => self.is_contender(contender),
            false => self.keys[contender.0.index()].is_some(),
        };
        self.has_own_key(claim) && claim.predecessor.is_some_and(exists)
    }

    pub(super) fn start(&mut self, model: &Etcd, number: ClaimNo) {
        let reusable = self.clients[number.client()].reusable_keys.pop();
        let shared = ClaimNo(number.0 / 2 * 2);
        let key = if model.has(Step::KeyPerClaim) { reusable.unwrap_or(number) } else { shared };
        self.tokens.begin(number);
        self.claims[number.index()] = Claim { phase: Phase::Enqueueing, key: Some(key), ..Claim::default() };
    }

    pub(super) fn send(&mut self, model: &Etcd, number: ClaimNo, stale: bool) {
        let epoch = self.clients[number.client()].epoch;
        let claim = &mut self.claims[number.index()];
        let needs_bump = claim.unanswered > 0 && claim.unanswered_epoch >= epoch;
        let may_exist = match model.has(Step::FencedCopyMayHaveCreated) {
            true => claim.unanswered > 0,
            false => needs_bump,
        };
        let bump = needs_bump && model.has(Step::EpochBump);
        let kind = match claim.phase {
            Phase::Enqueueing if claim.given_up => {
                claim.phase = Phase::Withdrawing;
                claim.given_up = false;
                return;
            }
            Phase::Enqueueing => {
                let (key, is_only_copy) = (claim.key.unwrap_or(number), claim.unanswered == 0);
                claim.sends_copy(model, epoch);
                // Without one of the steps, it is what that leads to that shall be found.
                if is_only_copy && self.keys[key.index()].is_some() && model.is_full() {
                    self.broken = Some(FIRST_FINDS_NO_KEY);
                }
                let answer = self.enqueue(model, number, key, epoch);
                self.claims[number.index()].call = Call::Enqueued(answer);
                return;
            }
            Phase::Withdrawing if claim.granted => {
                claim.phase = Phase::Leaving;
                return;
            }
            Phase::Withdrawing if claim.own == 0 && !may_exist => return self.forget(model, number),
            Phase::Leaving => {
                let own = claim.own;
                let alone = std::mem::take(&mut claim.alone);
                let next = if alone || stale { None } else { self.next_of(number.client(), own) };
                match next {
                    Some(Handoff { to: (ClaimNo::FOREIGN, _), .. }) => {
                        if !model.has(Step::ReleaseWithoutHandoff) {
                            return;
                        }
                        RequestKind::LeaveWithoutHandoff { own, bump }
                    }
                    Some(handoff) => RequestKind::LeaveWithHandoff { own, handoff, bump },
                    None => RequestKind::LeaveEmpty { own, bump },
                }
            }
            _ => RequestKind::Withdraw { bump },
        };
        let claim = &mut self.claims[number.index()];
        let request = claim.key.map(|key| Request { claim: number, key, kind });
        claim.call = request.map_or(Call::Idle, Call::Sent);
    }

    pub(super) fn send_late(&mut self, model: &Etcd, number: ClaimNo) {
        let epoch = self.clients[number.client()].epoch;
        let claim = &mut self.claims[number.index()];
        claim.sends_copy(model, epoch);
        claim.unconfirmed = true;
        self.faults.lost -= 1;
        if let Some(key) = claim.key {
            self.leave_late(Request { claim: number, key, kind: RequestKind::Enqueue { epoch } });
        }
    }

    /// The reply to an enqueue arrives.
    pub(super) fn receive(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &mut self.claims[number.index()];
        if let Call::Enqueued(answer) = std::mem::take(&mut claim.call) {
            claim.unanswered -= 1;
            if claim.unanswered == 0 {
                claim.unanswered_epoch = 0;
            }
            let known = &mut self.clients[number.client()].epoch;
            *known = (*known).max(answer.epoch);
            self.take_reply(model, number, answer);
        }
    }

    /// The request that ends a claim is executed and answered.
    pub(super) fn end(&mut self, model: &Etcd, number: ClaimNo) {
        let Call::Sent(request) = std::mem::take(&mut self.claims[number.index()].call) else { return };
        let (deletion, bump) = (self.execute(model, request), request.kind.bumps());
        if let RequestKind::LeaveWithHandoff { handoff, .. } = request.kind {
            match deletion {
                // The reply is the handoff.
                Deletion::Done if handoff.to.0.client() == number.client() => {
                    self.accept(model, Handoff { to: handoff.to, ..Handoff::default() });
                }
                Deletion::KeyRemains(_) if model.has(Step::WrongOrderForgotten) => {
                    self.clients[number.client()].order = Order::default();
                }
                _ => {}
            }
        }
        let claim = &mut self.claims[number.index()];
        match deletion {
            Deletion::Done => {
                if bump {
                    self.clients[number.client()].epoch = self.epochs[number.client()];
                }
                self.forget(model, number);
            }
            Deletion::KeyGone if bump && model.has(Step::EpochBumpWhenKeyGone) => {
                claim.phase = Phase::Finishing
            }
            Deletion::KeyGone => self.forget(model, number),
            Deletion::KeyRemains(created) if created == claim.own => {}
            Deletion::KeyRemains(_) => claim.phase = Phase::Finishing,
        }
    }

    /// Applies the reply to an enqueue.
    pub(super) fn take_reply(
        &mut self,
        model: &Etcd,
        number: ClaimNo,
        EnqueueReply { own, contenders, .. }: EnqueueReply,
    ) {
        let claim = &mut self.claims[number.index()];
        if own == 0 {
            if !model.waits(number) && contenders > 0 {
                claim.phase = Phase::Withdrawing;
            }
            return;
        }
        claim.own = own;
        let created = std::mem::take(&mut claim.early_handoff);
        claim.granted |= created > 0 && (created == own || !model.has(Step::HandoffNamesRevision));
        let alone = contenders == 1;
        if alone || !model.waits(number) {
            return self.grant(number, alone);
        }
        let given_up = std::mem::take(&mut claim.given_up);
        claim.phase = Phase::Waiting;
        if claim.granted {
            self.grant(number, false);
        } else if given_up {
            claim.withdraw();
        } else {
            let in_front = self.own_in_front(number);
            let claim = &mut self.claims[number.index()];
            (claim.predecessor, claim.looked) = (in_front, in_front.is_some());
        }
    }

    /// The reply to the claim's request is lost.
    pub(super) fn lose_reply(&mut self, number: ClaimNo) {
        self.faults.lost -= 1;
        let claim = &mut self.claims[number.index()];
        claim.unconfirmed = true;
        if claim.phase == Phase::Finishing {
            claim.phase = Phase::Leaving;
        }
        if let Call::Sent(request) = std::mem::take(&mut claim.call) {
            self.leave_late(request);
        }
    }

    pub(super) fn leave_late(&mut self, request: Request) {
        self.late.push(request);
        self.late.sort_unstable();
    }

    pub(super) fn give_up(&mut self, number: ClaimNo) {
        self.faults.cancels -= 1;
        let claim = &mut self.claims[number.index()];
        match claim.phase {
            Phase::Waiting => claim.withdraw(),
            _ => claim.given_up = true,
        }
    }

    /// `acquire` returns a grant. Its token is the create revision of its key.
    pub(super) fn grant(&mut self, number: ClaimNo, alone: bool) {
        let claim = &mut self.claims[number.index()];
        claim.alone = alone && !claim.granted;
        claim.granted = true;
        let token = claim.own;
        claim.phase = Phase::Held;
        claim.given_up = false;
        (claim.predecessor, claim.looked) = (None, false);
        if !self.tokens.grant(number, token) {
            self.broken = Some(TOKENS_RISE);
        }
    }

    /// The claim has ended; a later one may reuse its key.
    pub(super) fn forget(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &mut self.claims[number.index()];
        let claim = std::mem::replace(claim, Claim { phase: Phase::Ended, ..Claim::default() });
        self.tokens.end(number);
        let reusable = !claim.unconfirmed || !model.has(Step::UnconfirmedKeyRetired);
        if let Some(key) = claim.key.filter(|_| reusable && model.has(Step::KeyPerClaim)) {
            self.clients[number.client()].reusable_keys.push(key);
        }
    }

    pub(super) fn forget_old_tokens(&mut self) {
        let phase = |claim: ClaimNo| self.claims[claim.index()].phase;
        let acquires = |claim| !matches!(phase(claim), Phase::New | Phase::Ended | Phase::Held);
        self.tokens.forget_old(acquires, |claim| phase(claim) == Phase::Ended);
    }

    pub(super) fn lose_handoff(&mut self, client: usize) {
        self.faults.lost -= 1;
        self.handoffs[client].remove(0);
    }

    pub(super) fn deliver(&mut self, model: &Etcd, client: usize) {
        let handoff = self.handoffs[client].remove(0);
        self.accept(model, handoff);
    }

    /// A client learns of a handoff to one of its claims.
    fn accept(&mut self, model: &Etcd, Handoff { to: (key, created), next }: Handoff) {
        let uses_key = |claim: &ClaimNo| self.claims[claim.index()].key == Some(key);
        let Some(number) = ClaimNo::all().find(uses_key) else { return };
        self.clients[number.client()].order.learn(Order { after: created, keys: next });
        let claim = &mut self.claims[number.index()];
        if claim.own == 0 {
            claim.early_handoff = claim.early_handoff.max(created);
        } else if !claim.granted && (claim.own == created || !model.has(Step::HandoffNamesRevision)) {
            claim.granted = true;
            if claim.phase == Phase::Waiting {
                self.grant(number, false);
            }
        }
    }

    /// Reads, at one revision, whether the claim's own key exists and which key is next in front of it.
    pub(super) fn read_queue(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &self.claims[number.index()];
        let there = self.has_own_key(claim) || !model.has(Step::ReadFindsOwnKey);
        let predecessor =
            self.contenders().filter(|(_, created)| *created < claim.own).max_by_key(|(_, at)| *at);
        if !there {
            self.claims[number.index()].withdraw();
        } else if predecessor.is_none() {
            self.grant(number, false);
        } else {
            let claim = &mut self.claims[number.index()];
            (claim.notified, claim.looked) = (false, true);
            claim.predecessor = predecessor;
        }
    }

    fn may_refuse(&self, claim: &Claim) -> bool {
        match claim.phase {
            Phase::Enqueueing => claim.call == Call::Idle && !claim.given_up,
            Phase::Waiting => true,
            Phase::Finishing | Phase::Withdrawing | Phase::Leaving => claim.call != Call::Idle,
            Phase::New | Phase::Held | Phase::Ended => false,
        }
    }

    pub(super) fn refuse(&mut self, model: &Etcd, number: ClaimNo) {
        self.faults.refusals -= 1;
        let claim = &mut self.claims[number.index()];
        if matches!(claim.phase, Phase::Enqueueing | Phase::Waiting) {
            return claim.withdraw();
        }
        claim.call = Call::Idle;
        match model.has(Step::RefusalEndsSession) {
            true => self.end_session(model, number.client()),
            false => self.forget(model, number),
        }
    }

    /// The client ends its session; the lease may still exist.
    pub(super) fn end_session(&mut self, model: &Etcd, client: usize) {
        self.clients[client].session_ended = true;
        self.clients[client].reusable_keys.clear();
        self.clients[client].order = Order::default();
        self.handoffs[client].clear();
        for claim in ClaimNo::all().filter(|claim| claim.client() == client) {
            let arrives = matches!(self.claims[claim.index()].call, Call::Enqueued(_));
            if arrives && !model.has(Step::DeadlineOfLateGrants) {
                continue;
            }
            self.tokens.end(claim);
            let ended = Claim { phase: Phase::Ended, ..Claim::default() };
            if let Call::Sent(request) = std::mem::replace(&mut self.claims[claim.index()], ended).call {
                self.leave_late(request);
            }
        }
    }
}

impl Claim {
    /// The claim stops waiting and has no predecessor any more.
    fn withdraw(&mut self) {
        (self.phase, self.predecessor, self.notified) = (Phase::Withdrawing, None, false);
        self.looked = false;
    }

    /// The claim sends a copy of its enqueue.
    fn sends_copy(&mut self, model: &Etcd, epoch: Revision) {
        self.unanswered += 1;
        if self.unanswered == 1 || model.has(Step::LastCopyTagsTheClaim) {
            self.unanswered_epoch = epoch;
        }
    }
}
