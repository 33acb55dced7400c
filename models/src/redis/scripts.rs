//! The server: its scripts.

use super::*;

impl State {
    pub(super) fn run(&mut self, model: &Redis, Request { claim, script, token }: Request) -> Reply {
        match script {
            Script::Renew => self.run_renew(model, claim, token),
            Script::Acquire => self.run_acquire(model, claim),
            Script::Confirm => self.run_confirm(model, claim),
            Script::Heartbeat => self.run_heartbeat(model, claim),
            Script::Release => self.run_release(model, claim),
        }
    }

    pub(super) fn run_acquire(&mut self, model: &Redis, claim: ClaimNo) -> Reply {
        let is_unserved = model.has(Step::QueueBeforeNewcomers) && self.serve(model);
        if let Some(token) = self.is_mine(claim) {
            return Reply::Granted(token);
        }
        let is_free = !is_unserved || !model.has(Step::UnservedQueueIsNotFree);
        if self.server.lock.is_none() && is_free {
            if self.server.queue.iter().any(|other| *other != claim && self.is_waiting(*other)) {
                self.broken = Some(IN_ORDER);
            }
            return Reply::Granted(self.give_to(model, claim));
        }
        if !self.server.queue.contains(&claim) {
            self.server.queue.push(claim);
        }
        self.server.lapsed[claim.index()] = false;
        Reply::Queued
    }

    pub(super) fn run_confirm(&mut self, model: &Redis, claim: ClaimNo) -> Reply {
        if model.has(Step::ConfirmServesQueue) {
            self.serve(model);
        }
        match self.is_mine(claim) {
            Some(token) if model.has(Step::ConfirmFindsGrant) => return Reply::Granted(token),
            _ => {}
        }
        if self.server.queue.contains(&claim) {
            self.server.lapsed[claim.index()] = false;
            return Reply::Queued;
        }
        if self.is_mine(claim).is_some() {
            self.broken = Some(NOT_TURNED_AWAY);
        }
        Reply::EntryGone
    }

    /// The heartbeat of a hold, executed late.
    fn run_renew(&mut self, model: &Redis, claim: ClaimNo, token: Token) -> Reply {
        let renews = |(holder, its): (ClaimNo, Token)| match holder == claim {
            true => its == token || !model.has(Step::HeartbeatChecksToken),
            false => !model.has(Step::HeartbeatChecksHolder),
        };
        if self.server.lock.is_some_and(|lock| lock != (claim, token) && renews(lock)) {
            self.broken = Some(NO_STALE_RENEWAL);
        }
        Reply::Done
    }

    pub(super) fn run_heartbeat(&mut self, model: &Redis, claim: ClaimNo) -> Reply {
        if self.server.queue.contains(&claim) {
            self.server.lapsed[claim.index()] = false;
        } else if !model.has(Step::HeartbeatNeverAdds) {
            self.server.queue.push(claim);
        }
        Reply::Queued
    }

    pub(super) fn run_release(&mut self, model: &Redis, claim: ClaimNo) -> Reply {
        if model.has(Step::ReleaseLeavesQueue) {
            self.leave_queue(claim);
        }
        let mine = self.is_mine(claim).is_some();
        if mine || !model.has(Step::ReleaseChecksClaim) {
            if !mine && self.server.lock.is_some() {
                self.broken = Some(NO_FOREIGN_RELEASE);
            }
            self.server.lock = None;
        }
        self.serve(model);
        Reply::Done
    }

    pub(super) fn is_mine(&self, claim: ClaimNo) -> Option<Token> {
        self.server.lock.filter(|(holder, _)| *holder == claim).map(|(_, token)| token)
    }

    pub(super) fn leave_queue(&mut self, claim: ClaimNo) {
        if let Some(nth) = self.server.queue.iter().position(|waiter| *waiter == claim) {
            self.server.queue.remove(nth);
        }
        self.server.lapsed[claim.index()] = false;
    }

    /// Gives the free lock to the first live waiter and drops the lapsed ones before it. Returns true if it stopped at
    /// its limit before it found one.
    pub(super) fn serve(&mut self, model: &Redis) -> bool {
        if self.server.lock.is_some() {
            return false;
        }
        for _ in 0..LAPSED_MAX {
            let Some(head) = self.server.queue.first().copied() else { return false };
            let lapsed = self.server.lapsed[head.index()];
            self.leave_queue(head);
            if !lapsed {
                let token = self.give_to(model, head);
                if model.sends_messages() {
                    self.claim(head).message = Message::Sent;
                }
                if model.is(PUSHED) {
                    let has_failed_over = self.has_failed_over;
                    let claim = self.claim(head);
                    (claim.late_token, claim.expired) = (token, false);
                    claim.pushed_by_new_master = has_failed_over;
                }
                return false;
            }
        }
        true
    }

    pub(super) fn give_to(&mut self, model: &Redis, claim: ClaimNo) -> Token {
        let by_counter = self.server.counter + 1;
        // The clock is ahead of every token that was ever created.
        let by_clock = if model.has(Step::TokenFromClock) { self.minted_last + 1 } else { 0 };
        let token = by_counter.max(by_clock);
        self.minted_last = self.minted_last.max(token);
        self.server.counter = token;
        self.server.lock = Some((claim, token));
        token
    }
}
