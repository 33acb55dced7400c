//! A claim up to its grant: a lease, the RPC, and a look at the queue.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use lockkit_core::{
    FencingToken,
    backend::{Acquired, Claim, Grant, recheck_pause, retry_pauses},
    support::SessionOver,
};
use tokio::{pin, time::Instant};
use tracing::debug;

use super::{
    RpcClaim, RpcSession,
    wire::{self, Position},
};
use crate::{
    error::{Effect, RequestError},
    keys::Queue,
    lease::Lease,
    wire::count_queue,
};

/// When a claim looks at the queue for the first time after it has called the RPC; a try repeats that.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// Looks in a row that find no other claim before this one, while the RPC stays silent: its reply is lost then.
const SILENT_LOOKS_MAX: u32 = 2;

impl RpcSession {
    pub(super) async fn acquire_claim(&self, claim: &Claim) -> lockkit_core::Result<Acquired> {
        let queue = self.layout.queue(claim.name())?;
        let mut pauses = retry_pauses();
        while !claim.has_given_up() {
            let fault = match self.attempt(claim, &queue).await {
                Ok(end) => return Ok(end),
                Err(fault) => fault,
            };
            // A try does not wait for an unreachable server.
            let again = claim.wait() && (fault.is_transient() || fault.effect == Effect::LeaseGone);
            if !again {
                return Err(fault.into_error("acquire").with_lock(claim.name()));
            }
            debug!(?fault, claim = ?claim.id(), "the claim starts again");
            tokio::select! {
                () = pauses.wait() => {}
                () = claim.give_up() => {}
                () = self.state.over() => {}
            }
        }
        Ok(Acquired::GaveUp)
    }

    /// Runs one attempt: a lease, the RPC, and a look at the queue that grants.
    async fn attempt(&self, claim: &Claim, queue: &Queue) -> Result<Acquired, RequestError> {
        let first = self.server.range(queue.as_str(), count_queue());
        if self.state.unless_over(first).await?.count() > 0 {
            claim.note_contended();
            if !claim.wait() {
                return Ok(Acquired::GaveUp);
            }
        }
        let granted = Lease::grant(&self.server, self.ttl, self.clock.clone());
        let lease = self.state.unless_over(granted).await?;
        let key = wire::key(queue, lease.id());
        let entry = Arc::new(RpcClaim { lease, key, created: OnceLock::new() });
        self.enter(claim.id(), &entry)?;
        let end = self.lock_and_confirm(claim, queue, &entry).await;
        if !matches!(end, Ok(Acquired::Granted(_))) {
            self.withdraw(claim, &entry).await;
        }
        end
    }

    async fn lock_and_confirm(
        &self,
        claim: &Claim,
        queue: &Queue,
        entry: &RpcClaim,
    ) -> Result<Acquired, RequestError> {
        let rpc = wire::lock(&self.server, queue, entry.lease.id());
        pin!(rpc);
        let (started, mut looks, mut silent) = (Instant::now(), 0, 0);
        loop {
            let is_early = looks == 0 || !claim.wait();
            let pause = if is_early { LOOK_AFTER } else { recheck_pause(self.ttl) };
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(Acquired::GaveUp),
                () = self.state.over() => return Err(SessionOver.into()),
                answer = &mut rpc => {
                    answer?;
                    return self.confirm(claim, queue, entry).await;
                }
                () = tokio::time::sleep(pause) => looks += 1,
            }
            let look = self.position(queue, entry);
            let position = tokio::select! {
                position = look => position,
                () = claim.give_up() => return Ok(Acquired::GaveUp),
            };
            match position {
                Ok(Position::Behind) => {
                    claim.note_contended();
                    if !claim.wait() {
                        return Ok(Acquired::GaveUp);
                    }
                    silent = 0;
                }
                Ok(Position::First(_) | Position::Absent) => silent += 1,
                Err(fault) if fault.is_transient() => debug!(?fault, "look at the queue not answered"),
                Err(fault) => return Err(fault),
            }
            let longest = self.server.request_timeout();
            if claim.wait() && silent >= SILENT_LOOKS_MAX || !claim.wait() && started.elapsed() >= longest {
                return Err(RequestError::no_reply());
            }
        }
    }

    /// Grants the claim if its key is the first in the queue.
    async fn confirm(
        &self,
        claim: &Claim,
        queue: &Queue,
        entry: &RpcClaim,
    ) -> Result<Acquired, RequestError> {
        let mut pauses = retry_pauses();
        loop {
            match self.position(queue, entry).await {
                Ok(Position::First(created)) => {
                    let created = *entry.created.get_or_init(|| created);
                    let token = FencingToken::new(created.unsigned_abs());
                    return Ok(Acquired::Granted(Grant::new(claim, token, entry.lease.armed_at())));
                }
                Ok(Position::Behind | Position::Absent) => return Ok(Acquired::EntryGone),
                Err(fault) if fault.is_transient() && claim.wait() => debug!(?fault, "not confirmed yet"),
                Err(fault) => return Err(fault),
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = claim.give_up() => return Ok(Acquired::GaveUp),
                () = self.state.over() => return Err(SessionOver.into()),
            }
        }
    }

    async fn position(&self, queue: &Queue, entry: &RpcClaim) -> Result<Position, RequestError> {
        let read = self.server.txn(wire::read_position(queue, &entry.key));
        wire::parse_position(&self.state.unless_over(read).await?)
    }

    /// Revokes the lease of a claim without a grant. Retries until that is answered or the session is closed; then the
    /// close revokes it.
    async fn withdraw(&self, claim: &Claim, entry: &RpcClaim) {
        let mut pauses = retry_pauses();
        while !self.state.is_over() {
            match self.revoke(claim.id(), entry).await {
                Ok(()) => return,
                Err(fault) if fault.is_transient() => {
                    debug!(?fault, claim = ?claim.id(), "not withdrawn yet");
                }
                Err(fault) => {
                    // Nobody renews the lease any more.
                    debug!(?fault, claim = ?claim.id(), "withdrawal refused; the lease ends with its ttl");
                    self.table().remove(&claim.id());
                    return;
                }
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = self.state.over() => {}
            }
        }
    }
}
