//! A claim's life up to its grant: enqueue, wait, and withdraw when it comes to nothing.
//!
//! Failure cases:
//!
//! * The reply to the enqueue is lost: it is sent again; no other claim has this key, so a copy finds what an earlier one
//!   did. Copies that were never answered may arrive at any later time, so a claim that had any ends by a
//!   transaction that moves the client's epoch, which every copy compares: a late one does nothing then.
//! * The claim is given up on the way: the request that is under way is awaited (it has a time limit), then the key is
//!   taken away, again and again until that is answered.
//! * The predecessor dies, is foreign, or its mail is lost: its deletion is watched, and whatever happens the two keys,
//!   its own and the predecessor's, are looked for now and then. A deletion alone is no grant (a predecessor may have been a waiter too, and one revision
//!   can delete several keys): the grant is one read that finds the own key and nobody before it.
//! * The own key vanishes: the next re-check says so, and the claim ends.
//! * The lease ends: every pending step ends, nothing is left at the server.

use std::{convert::Infallible, ops::ControlFlow, pin::pin, sync::Arc, time::Duration};

use lockkit_core::{
    Error, FencingToken, Result,
    backend::{Acquired, Claim, ClaimId, Grant, recheck_pause, retry_pauses},
    limits::RETRY_PAUSE_MAX,
};
use tracing::debug;

use crate::{
    claims::Place,
    error::Fault,
    session::EtcdSession,
    txn::{self, Contender, Enqueued, Revision, contenders, revision_of},
};

/// How long a waiter that sees its predecessor go waits for the mail that was put in the same transaction, before it
/// looks for itself. Both come over the same stream within microseconds, in any order.
const MAIL_GRACE: Duration = Duration::from_millis(50);

/// How long a waiter relies on mail alone before it also watches its predecessor. The server looks after a watch that
/// begins in the past every 100 ms, so watching sooner would help little, and under contention most mails come sooner.
const WATCH_AFTER: Duration = Duration::from_millis(100);

/// Looks that may see less than an event has told: it comes before its revision can be read. (Where the store went back to
/// a backup, that revision may be far away.)
const EARLY_LOOKS_MAX: usize = 4;

/// How a claim ended.
enum End {
    Granted(FencingToken),
    GaveUp,
    EntryGone,
}

/// The nearest contender in front of a claim, and when that was so.
struct Predecessor {
    contender: Contender,
    seen_at: Revision,
}

impl EtcdSession {
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let queue = self.layout.queue(claim.name())?;
        let key = self.spare_keys.take(&queue).unwrap_or_else(|| queue.key(self.lease.id(), claim.id()));
        let place = self.claims.enter(claim.id(), queue, key);
        let end = self.claim(claim, &place).await;
        if let Ok(End::Granted(token)) = end {
            return Ok(Acquired::Granted(Grant::new(claim, token, self.lease.armed_at())));
        }
        self.withdraw(claim, &place).await;
        match end {
            Ok(End::GaveUp) => Ok(Acquired::GaveUp),
            Err(fault) if !self.life.is_over() || self.life.is_closed() => Err(self.error(claim, fault)),
            // With the session the entry is gone too.
            _ => Ok(Acquired::EntryGone),
        }
    }

    fn error(&self, claim: &Claim, fault: Fault) -> Error {
        fault.into_error("acquire").with_lock(claim.name())
    }

    async fn claim(&self, claim: &Claim, place: &Arc<Place>) -> Result<End, Fault> {
        if !claim.wait() && self.busy_lately.expects(&place.queue) && self.is_busy(place).await {
            return Ok(self.meet_holder(claim, place));
        }
        match self.enqueue(claim, place).await? {
            ControlFlow::Break(end) => Ok(end),
            ControlFlow::Continue(predecessor) => {
                claim.note_contended();
                self.wait(claim, place, predecessor).await
            }
        }
    }

    /// Asks, without writing anything, whether anybody is in the queue; without an answer the enqueue asks again.
    async fn is_busy(&self, place: &Place) -> bool {
        let read = self.server.range(place.queue.as_str(), txn::anybody());
        self.life.unless_over(read).await.is_ok_and(|answer| answer.count() > 0)
    }

    /// A try ends here.
    fn meet_holder(&self, claim: &Claim, place: &Place) -> End {
        claim.note_contended();
        self.busy_lately.note(&place.queue);
        End::GaveUp
    }

    /// Brings the claim into the queue. Continues with its predecessor, if the answer told one.
    async fn enqueue(
        &self,
        claim: &Claim,
        place: &Place,
    ) -> Result<ControlFlow<End, Option<Predecessor>>, Fault> {
        let mut pauses = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(ControlFlow::Break(End::GaveUp));
            }
            let fault = match self.send_enqueue(claim, place).await {
                Ok(answer) => match self.standing(claim, place, answer) {
                    Some(standing) => return Ok(standing),
                    // The epoch moved; the next copy carries the new one.
                    None => continue,
                },
                Err(fault) => fault,
            };
            // A try does not wait for a server that is away, unless something of it may have got through.
            let worth_another = claim.wait() || place.needs_fence();
            if !fault.may_pass() || !worth_another {
                return Err(fault);
            }
            debug!(?fault, claim = ?claim.id(), "enqueue not answered");
            tokio::select! {
                () = tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)) => {}
                () = claim.give_up() => {}
                () = self.life.over() => return Err(Fault::session_over()),
            }
        }
    }

    /// Sends one copy of the enqueue, and counts it as outstanding until it is known to be none.
    async fn send_enqueue(&self, claim: &Claim, place: &Place) -> Result<Enqueued, Fault> {
        let (epoch, metadata) = (self.epoch.current(), claim.metadata().to_json());
        let txn = txn::enqueue(&self.claiming(place), epoch, metadata, claim.wait());
        place.sending();
        let answer = self.txn(txn).await;
        match &answer {
            Err(fault) if fault.leaves_doubt() => place.put_in_doubt(),
            _ => place.answered(),
        }
        let answer = txn::enqueued(&answer?)?;
        match answer.epoch {
            // The key is gone, or the store has gone back to an earlier history.
            Some(now) if now < epoch => self.life.lose(),
            Some(now) => self.epoch.moved_to(now),
            None => {}
        }
        Ok(answer)
    }

    /// What the answer to an enqueue means; `None`: nothing was done, because the epoch had moved.
    fn standing(
        &self,
        claim: &Claim,
        place: &Place,
        answer: Enqueued,
    ) -> Option<ControlFlow<End, Option<Predecessor>>> {
        let Some(own) = answer.own else {
            if !claim.wait() && answer.contenders > 0 {
                return Some(ControlFlow::Break(self.meet_holder(claim, place)));
            }
            return self.life.is_over().then_some(ControlFlow::Break(End::EntryGone));
        };
        place.created(own);
        let alone = answer.contenders == 1;
        // A try is in the queue only when nobody was there before it.
        if alone || !claim.wait() {
            return Some(ControlFlow::Break(End::Granted(place.granted(answer.revision, alone))));
        }
        let predecessor = match answer.newest.as_slice() {
            [newest, next] if newest.created == own => Some(next.clone()),
            _ => None,
        };
        let seen_at = answer.revision;
        Some(ControlFlow::Continue(predecessor.map(|contender| Predecessor { contender, seen_at })))
    }

    /// Waits in the queue.
    async fn wait(
        &self,
        claim: &Claim,
        place: &Arc<Place>,
        mut predecessor: Option<Predecessor>,
    ) -> Result<End, Fault> {
        loop {
            let next = async {
                let not_before = match &predecessor {
                    Some(predecessor) => self.stay_behind(predecessor, place).await?,
                    None => 0,
                };
                self.look(place, not_before).await
            };
            let standing = tokio::select! {
                biased;
                token = place.when_granted() => return Ok(End::Granted(token)),
                () = claim.give_up() => return Ok(End::GaveUp),
                () = self.life.over() => return Err(Fault::session_over()),
                standing = next => standing?,
            };
            match standing {
                ControlFlow::Break(end) => return Ok(end),
                ControlFlow::Continue(next) => predecessor = Some(next),
            }
        }
    }

    /// Waits until the predecessor has gone, or the own key. Answers the revision before which a look may not see it.
    async fn stay_behind(&self, predecessor: &Predecessor, place: &Arc<Place>) -> Result<Revision, Fault> {
        let mut watch = pin!(self.watch(predecessor, place));
        loop {
            tokio::select! {
                biased;
                gone_at = place.when_predecessor_gone() => {
                    if gone_at > 0 && predecessor.contender.client().is_some() {
                        tokio::time::sleep(MAIL_GRACE).await;
                    }
                    return Ok(gone_at);
                }
                never = &mut watch => match never {},
                () = tokio::time::sleep(recheck_pause(self.lease.ttl())) => {}
            }
            if !self.are_both_there(predecessor, place).await? {
                return Ok(0);
            }
        }
    }

    /// Watches the predecessor until it is dropped.
    async fn watch(&self, predecessor: &Predecessor, place: &Arc<Place>) -> Infallible {
        if predecessor.contender.client().is_some() {
            tokio::time::sleep(WATCH_AFTER).await;
        }
        let key = predecessor.contender.key.clone();
        let _watching = self.watches.add(key, predecessor.seen_at + 1, place);
        std::future::pending().await
    }

    /// The re-check: whether the own key and its predecessor are still there. By their names, because a range costs the
    /// server as much as the queue is long; and by create revisions, because a later claim may use either key again. Nobody
    /// can have come in between: what is created later is behind.
    async fn are_both_there(&self, predecessor: &Predecessor, place: &Place) -> Result<bool, Fault> {
        let Contender { key, created } = &predecessor.contender;
        let answer = self.read(|| self.server.txn(txn::look_for([place.key.as_bytes(), key]))).await?;
        Ok(txn::found(&answer) == [place.own(), Some(*created)])
    }

    /// Reads, at one revision not before `not_before`, whether the own key is there and who is next in front of it.
    async fn look(
        &self,
        place: &Place,
        not_before: Revision,
    ) -> Result<ControlFlow<End, Predecessor>, Fault> {
        let Some(own) = place.own() else { return Err(Fault::nonsense("waiting without an entry")) };
        let mut early = retry_pauses().take(EARLY_LOOKS_MAX);
        loop {
            let read = || self.server.range(place.queue.as_str(), txn::own_and_predecessor(own));
            let answer = self.read(read).await?;
            let seen_at = revision_of(answer.header())?;
            if seen_at < not_before
                && let Some(pause) = early.next()
            {
                tokio::time::sleep(pause).await;
                continue;
            }
            return Ok(match contenders(&answer).as_slice() {
                [first] if first.created == own => {
                    ControlFlow::Break(End::Granted(place.granted(seen_at, false)))
                }
                [first, next] if first.created == own => {
                    ControlFlow::Continue(Predecessor { contender: next.clone(), seen_at })
                }
                _ => ControlFlow::Break(End::EntryGone),
            });
        }
    }

    /// Reads again and again, until there is an answer.
    async fn read<T, F>(&self, read: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut pauses = retry_pauses();
        loop {
            match self.life.unless_over(read()).await {
                Err(fault) if fault.may_pass() => debug!(?fault, "read not answered"),
                answer => return answer,
            }
            tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
        }
    }

    /// Takes away what a claim without a grant may have left at the server; repeated until it is answered, or the
    /// session is over.
    async fn withdraw(&self, claim: &Claim, place: &Place) {
        let mut pauses = retry_pauses();
        while !self.life.is_over() {
            match self.withdraw_once(claim, place).await {
                Ok(()) => break,
                Err(fault) if fault.may_pass() => debug!(?fault, claim = ?claim.id(), "not withdrawn yet"),
                Err(fault) => {
                    // It would hold up others as long as the session lives.
                    debug!(?fault, claim = ?claim.id(), "cannot be withdrawn; the session is given up");
                    self.life.lose();
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)) => {}
                () = self.life.over() => {}
            }
        }
        self.forget(claim.id(), place);
    }

    /// Forgets a claim that has ended; a later one may have its key.
    pub(crate) fn forget(&self, id: ClaimId, place: &Place) {
        self.claims.forget(id);
        if !place.is_in_doubt() {
            self.spare_keys.leave(&place.queue, place.key.clone());
        }
    }

    async fn withdraw_once(&self, claim: &Claim, place: &Place) -> Result<(), Fault> {
        if place.token().is_some() {
            // A mail came while it was given up: it holds the lock, and hands it over.
            return self.leave(place).await;
        }
        let fence = place.needs_fence();
        if place.own().is_none() && !fence {
            return Ok(());
        }
        self.take_away(place, txn::withdraw(&self.claiming(place), fence), fence).await?;
        debug!(claim = ?claim.id(), "withdrawn");
        Ok(())
    }
}
