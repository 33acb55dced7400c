//! The server: its scripts, and the rule that admits claims.

use super::*;

impl State {
    /// Runs the script of the claim's phase.
    pub(super) fn run(&mut self, model: &RedisModes, number: ClaimNo) -> Reply {
        if model.has(Step::DropsExpired) {
            self.drop_expired();
        }
        let reply = match self.claims[number.index()].phase {
            Phase::Acquiring => self.run_acquire(model, number),
            Phase::Counted => Reply::Granted(self.give_to(model, number)),
            Phase::Releasing => self.run_release(model, number),
            _ => self.run_confirm(model, number),
        };
        let next = self.server.queue.iter().find(|claim| !self.server.lapsed[claim.index()]);
        if next.is_some_and(|next| self.is_admitted(model, *next)) {
            self.broken = self.broken.or(Some(SERVED));
        }
        reply
    }

    fn run_acquire(&mut self, model: &RedisModes, number: ClaimNo) -> Reply {
        self.serve(model);
        if let Some(token) = self.is_mine(number) {
            return Reply::Granted(token);
        }
        let is_live = |claim: &&ClaimNo| !self.server.lapsed[claim.index()];
        let others_wait = self.server.queue.iter().filter(is_live).any(|claim| *claim != number);
        let may_take = !others_wait || !model.has(Step::QueueBeforeNewcomers);
        if may_take && self.is_admitted(model, number) {
            if !model.has(Step::CountsAndTakesAtOnce) {
                return Reply::Counted;
            }
            if others_wait {
                self.broken = Some(IN_ORDER);
            }
            return Reply::Granted(self.give_to(model, number));
        }
        if !self.server.queue.contains(&number) {
            self.server.queue.push(number);
        }
        self.server.lapsed[number.index()] = false;
        Reply::Queued
    }

    fn run_confirm(&mut self, model: &RedisModes, number: ClaimNo) -> Reply {
        self.serve(model);
        if let Some(token) = self.is_mine(number) {
            return Reply::Granted(token);
        }
        if self.server.queue.contains(&number) {
            self.server.lapsed[number.index()] = false;
            return Reply::Queued;
        }
        Reply::EntryGone
    }

    fn run_release(&mut self, model: &RedisModes, number: ClaimNo) -> Reply {
        self.leave_queue(number);
        let was_held = std::mem::take(&mut self.server.holders[number.index()]) > 0;
        self.server.expired[number.index()] = false;
        let is_shared = self.claims[number.index()].mode == Mode::SHARED;
        let serves = match was_held {
            true => !is_shared || model.has(Step::SharedReleaseServes),
            false => model.has(Step::WithdrawalServes),
        };
        if serves {
            self.serve(model);
        }
        Reply::Done
    }

    /// The heartbeat of a hold, executed late.
    pub(super) fn renew_late(&mut self, model: &RedisModes, Renewal { claim, token }: Renewal) {
        let holder = &mut self.server.holders[claim.index()];
        if *holder == token {
            self.server.expired[claim.index()] = false;
        } else if *holder == 0 && !model.has(Step::RenewalNeverAdds) {
            *holder = token;
        }
    }

    pub(super) fn expire(&mut self, model: &RedisModes, number: ClaimNo) {
        for claim in ClaimNo::all().filter(|claim| self.server.holders[claim.index()] > 0) {
            let expires = claim == number || !model.has(Step::LifetimePerHolder);
            self.server.expired[claim.index()] |= expires;
        }
    }

    fn drop_expired(&mut self) {
        for claim in ClaimNo::all().filter(|claim| self.server.expired[claim.index()]) {
            self.server.holders[claim.index()] = 0;
        }
        self.server.expired = [false; CLAIMS];
    }

    fn is_mine(&self, claim: ClaimNo) -> Option<Token> {
        Some(self.server.holders[claim.index()]).filter(|token| *token > 0)
    }

    fn leave_queue(&mut self, claim: ClaimNo) {
        if let Some(nth) = self.server.queue.iter().position(|waiter| *waiter == claim) {
            self.server.queue.remove(nth);
        }
        self.server.lapsed[claim.index()] = false;
    }

    /// Grants the lock to the waiters that are admitted, and drops the lapsed ones among them.
    fn serve(&mut self, model: &RedisModes) {
        while let Some(head) = self.server.queue.first().copied() {
            let lapsed = self.server.lapsed[head.index()];
            if !lapsed && !self.is_admitted(model, head) {
                return;
            }
            self.leave_queue(head);
            if lapsed {
                continue;
            }
            self.give_to(model, head);
            self.claims[head.index()].message = Message::Sent;
            if !model.has(Step::ServesAll) {
                return;
            }
        }
    }

    /// Whether the holders admit the claim. The waiters before it are its callers' concern.
    fn is_admitted(&self, model: &RedisModes, number: ClaimNo) -> bool {
        let holders = || ClaimNo::all().filter(|claim| self.server.holders[claim.index()] > 0);
        let mode = self.claims[number.index()].mode;
        match model.has(Step::HeedsLimitsOfHolders) {
            true => mode.is_admitted_behind(holders().map(|claim| self.claims[claim.index()].mode)),
            false => mode.alone_admits(holders().count()),
        }
    }

    fn give_to(&mut self, model: &RedisModes, number: ClaimNo) -> Token {
        let is_shared = self.claims[number.index()].mode == Mode::SHARED;
        let joins = is_shared && self.server.counter > 0 && !model.has(Step::SharedTokenRises);
        let token = self.server.counter + u8::from(!joins);
        self.server.counter = token;
        self.server.holders[number.index()] = token;
        token
    }
}
