//! What a claim does next: `acquire.rs`, `release.rs` and `claims.rs` of the backend.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &Etcd, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        if self.clients[number.client()].over {
            if let Call::Answered(_) = claim.call {
                actions.push(Action::Receive(number));
            }
            return;
        }
        match claim.call {
            Call::Idle => {}
            Call::Sent(_) => actions.push(Action::Execute(number)),
            Call::Answered(_) => actions.push(Action::Receive(number)),
        }
        if claim.call != Call::Idle && self.faults.lost > 0 {
            actions.push(Action::LoseReply(number));
        }
        let idle = claim.call == Call::Idle;
        let before = (number.index() + CLAIMS - 1) % CLAIMS;
        match claim.phase {
            Phase::New if number.index() >= model.claims => {}
            Phase::New if number.is_first() || self.claims[before].phase != Phase::New => {
                actions.push(Action::Start(number));
            }
            Phase::New | Phase::Ended => {}
            Phase::Enqueueing | Phase::Finishing | Phase::Withdrawing | Phase::Leaving if idle => {
                actions.push(Action::Send(number));
                if claim.phase == Phase::Enqueueing && !claim.given_up && self.faults.lost > 0 {
                    actions.push(Action::SendLate(number));
                }
                if claim.phase == Phase::Leaving && !claim.alone && self.successor(claim.own).is_some() {
                    actions.push(Action::SendAfterStaleRead(number));
                }
            }
            Phase::Waiting => self.actions_of_waiter(model, number, actions),
            Phase::Held => {
                actions.push(Action::Release(number));
                if !self.is_there(claim) {
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
        if claim.told || model.has(Step::Recheck) && !self.are_both_there(model, claim) {
            actions.push(Action::Look(number));
        }
        if model.tells_of_ends() && claim.predecessor.is_some_and(has_gone) && !claim.told {
            actions.extend([Action::Told(number), Action::LoseEvent(number)]);
        }
    }

    /// The re-check: whether it finds the own key and the predecessor's.
    fn are_both_there(&self, model: &Etcd, claim: &Claim) -> bool {
        let is_there = |contender: Contender| match model.has(Step::RecheckNamesIncarnation) {
            true => self.is_contender(contender),
            false => self.keys[contender.0.index()].is_some(),
        };
        self.is_there(claim) && claim.predecessor.is_some_and(is_there)
    }

    pub(super) fn start(&mut self, model: &Etcd, number: ClaimNo) {
        let spare = self.clients[number.client()].spare_keys.pop();
        let shared = ClaimNo(number.0 / 2 * 2);
        let key = if model.has(Step::KeyPerClaim) { spare.unwrap_or(number) } else { shared };
        let floor = self.token_last;
        let claim = &mut self.claims[number.index()];
        *claim = Claim { phase: Phase::Enqueueing, key: Some(key), floor, ..Claim::default() };
    }

    pub(super) fn send(&mut self, model: &Etcd, number: ClaimNo, stale: bool) {
        let epoch = self.clients[number.client()].epoch;
        let claim = &mut self.claims[number.index()];
        let needs_fence = claim.unanswered > 0;
        let fence = needs_fence && model.has(Step::EpochFence);
        let what = match claim.phase {
            Phase::Enqueueing if claim.given_up => {
                claim.phase = Phase::Withdrawing;
                claim.given_up = false;
                return;
            }
            Phase::Enqueueing => {
                claim.unanswered += 1;
                let key = claim.key.unwrap_or(number);
                let answer = self.enqueue(model, number, key, epoch);
                self.claims[number.index()].call = Call::Answered(answer);
                return;
            }
            Phase::Withdrawing if claim.granted > 0 => {
                claim.phase = Phase::Leaving;
                return;
            }
            Phase::Withdrawing if claim.own == 0 && !needs_fence => return self.forget(model, number),
            Phase::Leaving => {
                let own = claim.own;
                let alone = std::mem::take(&mut claim.alone);
                match self.successor(own).filter(|_| !alone && !stale) {
                    Some((FOREIGN, _)) if !model.has(Step::LeavesUntold) => return,
                    Some((FOREIGN, _)) => What::LeaveUntold { own, fence },
                    Some(to) => What::HandOver { own, to, fence },
                    None => What::LeaveEmpty { own, fence },
                }
            }
            _ => What::Withdraw { fence },
        };
        let claim = &mut self.claims[number.index()];
        let request = claim.key.map(|key| Request { claim: number, key, what });
        claim.call = request.map_or(Call::Idle, Call::Sent);
    }

    pub(super) fn send_late(&mut self, number: ClaimNo) {
        let epoch = self.clients[number.client()].epoch;
        let claim = &mut self.claims[number.index()];
        claim.unanswered += 1;
        claim.in_doubt = true;
        self.faults.lost -= 1;
        if let Some(key) = claim.key {
            self.leave_stray(Request { claim: number, key, what: What::Enqueue { epoch } });
        }
    }

    /// The answer to an enqueue.
    pub(super) fn receive(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &mut self.claims[number.index()];
        if let Call::Answered(answer) = std::mem::take(&mut claim.call) {
            claim.unanswered -= 1;
            let known = &mut self.clients[number.client()].epoch;
            *known = (*known).max(answer.epoch);
            self.standing(model, number, answer);
        }
    }

    /// The end of a claim is executed and answered.
    pub(super) fn end(&mut self, model: &Etcd, number: ClaimNo) {
        let Call::Sent(request) = std::mem::take(&mut self.claims[number.index()].call) else { return };
        let (left, fence) = (self.execute(model, request), request.what.fences());
        let claim = &mut self.claims[number.index()];
        match left {
            Left::Done => {
                if fence {
                    self.clients[number.client()].epoch = self.epochs[number.client()];
                }
                self.forget(model, number);
            }
            Left::Gone if fence && model.has(Step::FenceWhenGone) => claim.phase = Phase::Finishing,
            Left::Gone => self.forget(model, number),
            Left::Still(created) if created == claim.own => {}
            Left::Still(_) => claim.phase = Phase::Finishing,
        }
    }

    /// What the answer to an enqueue means.
    pub(super) fn standing(
        &mut self,
        model: &Etcd,
        number: ClaimNo,
        Answer { revision, own, contenders, next, .. }: Answer,
    ) {
        let claim = &mut self.claims[number.index()];
        if own == 0 {
            if !model.waits(number) && contenders > 0 {
                claim.phase = Phase::Withdrawing;
            }
            return;
        }
        claim.own = own;
        let (created, mailed) = std::mem::take(&mut claim.early_mail);
        let counts = created == own || !model.has(Step::MailNamesIncarnation);
        if mailed > 0 && counts {
            claim.granted = mailed;
        }
        let alone = contenders == 1;
        if alone || !model.waits(number) {
            return self.grant(number, revision, alone);
        }
        let given_up = std::mem::take(&mut claim.given_up);
        claim.phase = Phase::Waiting;
        claim.predecessor = next;
        if claim.granted > 0 {
            self.grant(number, revision, false);
        } else if given_up {
            claim.withdraw();
        } else if next.is_none() {
            self.look(model, number);
        }
    }

    /// The reply of the claim's request does not come.
    pub(super) fn lose_reply(&mut self, number: ClaimNo) {
        self.faults.lost -= 1;
        let claim = &mut self.claims[number.index()];
        claim.in_doubt = true;
        if claim.phase == Phase::Finishing {
            claim.phase = Phase::Leaving;
        }
        if let Call::Sent(request) = std::mem::take(&mut claim.call) {
            self.leave_stray(request);
        }
    }

    pub(super) fn leave_stray(&mut self, request: Request) {
        self.strays.push(request);
        self.strays.sort_unstable();
    }

    pub(super) fn give_up(&mut self, number: ClaimNo) {
        self.faults.cancels -= 1;
        let claim = &mut self.claims[number.index()];
        match claim.phase {
            Phase::Waiting => claim.withdraw(),
            _ => claim.given_up = true,
        }
    }

    /// `acquire` answers a grant; the first proof fixes its token.
    pub(super) fn grant(&mut self, number: ClaimNo, revision: Revision, alone: bool) {
        let claim = &mut self.claims[number.index()];
        if claim.granted == 0 {
            (claim.granted, claim.alone) = (revision, alone);
        }
        let (token, floor) = (claim.granted, std::mem::take(&mut claim.floor));
        claim.phase = Phase::Held;
        claim.given_up = false;
        claim.predecessor = None;
        if token <= floor || self.claims.iter().any(|other| other.token == token) {
            self.broken = Some(TOKENS_RISE);
        }
        self.claims[number.index()].token = token;
        self.token_last = self.token_last.max(token);
        self.grants += 1;
    }

    /// The claim has ended; a later one may have its key.
    pub(super) fn forget(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &mut self.claims[number.index()];
        let ended = Claim { phase: Phase::Ended, token: claim.token, ..Claim::default() };
        let claim = std::mem::replace(claim, ended);
        let reusable = !claim.in_doubt || !model.has(Step::DoubtfulKeyRetired);
        if let Some(key) = claim.key.filter(|_| reusable && model.has(Step::KeyPerClaim)) {
            self.clients[number.client()].spare_keys.push(key);
        }
    }

    /// Tokens of ended claims that every later grant is compared with by its floor.
    pub(super) fn forget_old_tokens(&mut self) {
        let lives = |claim: &&Claim| !matches!(claim.phase, Phase::New | Phase::Ended | Phase::Held);
        let floor = self.claims.iter().filter(lives).map(|claim| claim.floor).min().unwrap_or(Revision::MAX);
        for claim in
            self.claims.iter_mut().filter(|claim| claim.phase == Phase::Ended && claim.token <= floor)
        {
            claim.token = 0;
        }
    }

    pub(super) fn lose_mail(&mut self, client: usize) {
        self.faults.lost -= 1;
        self.mails[client].remove(0);
    }

    pub(super) fn deliver(&mut self, model: &Etcd, client: usize) {
        let Mail { to: (key, created), revision } = self.mails[client].remove(0);
        let live = |claim: &ClaimNo| self.claims[claim.index()].key == Some(key);
        let Some(number) = ClaimNo::all().find(live) else { return };
        let claim = &mut self.claims[number.index()];
        if claim.own == 0 {
            claim.early_mail = claim.early_mail.max((created, revision));
        } else if claim.granted == 0 && (claim.own == created || !model.has(Step::MailNamesIncarnation)) {
            claim.granted = revision;
            if claim.phase == Phase::Waiting {
                self.grant(number, revision, false);
            }
        }
    }

    /// Reads, at one revision, whether the own key is there and who is next in front of it.
    pub(super) fn look(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &self.claims[number.index()];
        let there = self.is_there(claim) || !model.has(Step::LookFindsOwnKey);
        let predecessor =
            self.contenders().filter(|(_, created)| *created < claim.own).max_by_key(|(_, at)| *at);
        if !there {
            self.claims[number.index()].withdraw();
        } else if predecessor.is_none() {
            self.grant(number, self.revision, false);
        } else {
            let claim = &mut self.claims[number.index()];
            claim.told = false;
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

    /// The session is over for its client; the lease may live on.
    pub(super) fn end_session(&mut self, model: &Etcd, client: usize) {
        self.clients[client].over = true;
        self.clients[client].spare_keys.clear();
        self.mails[client].clear();
        for claim in ClaimNo::all().filter(|claim| claim.client() == client) {
            let arrives = matches!(self.claims[claim.index()].call, Call::Answered(_));
            if arrives && !model.has(Step::DeadlineOfGrants) {
                continue;
            }
            let token = self.claims[claim.index()].token;
            let ended = Claim { phase: Phase::Ended, token, ..Claim::default() };
            if let Call::Sent(request) = std::mem::replace(&mut self.claims[claim.index()], ended).call {
                self.leave_stray(request);
            }
        }
    }
}

impl Claim {
    /// It waits no longer, and knows of no predecessor.
    fn withdraw(&mut self) {
        (self.phase, self.predecessor, self.told) = (Phase::Withdrawing, None, false);
    }
}
