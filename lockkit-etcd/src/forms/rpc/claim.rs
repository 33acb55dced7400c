//! A claim up to its grant: a lease, the RPC, and a read of the queue.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    FencingToken,
    backend::{Acquired, Claim, Grant, recheck_pause, retry_pauses},
    support::SessionOver,
};
use tokio::{pin, time::Instant};
use tracing::debug;

use super::{
    RpcClaim, RpcSession,
    wire::{self, QueuePosition},
};
use crate::{
    error::{Effect, RequestError},
    keys::QueuePath,
    lease::Lease,
    wire::count_queue,
};

/// When a claim reads the queue for the first time after it has called the RPC; a try repeats that.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// How long an RPC may stay silent after a read that found no other claim before this one: its reply is lost then.
const SILENCE_MAX: Duration = Duration::from_secs(1);

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

    /// Runs one attempt: a lease, the RPC, and a read of the queue that grants.
    async fn attempt(&self, claim: &Claim, queue: &QueuePath) -> Result<Acquired, RequestError> {
        let look = self.server.range(queue.as_str(), count_queue());
        let look = async { Ok::<_, RequestError>(self.state.unless_over(look).await?.count() > 0) };
        let granted = Lease::grant(&self.server, self.ttl, self.clock.clone());
        let granted = self.state.unless_over(granted);
        let (is_busy, lease) = if claim.wait() {
            // At the same time. If the look fails, a lease without keys is left for one ttl.
            let (is_busy, lease) = tokio::join!(look, granted);
            (is_busy?, lease?)
        } else {
            if look.await? {
                claim.note_contended();
                return Ok(Acquired::GaveUp);
            }
            (false, granted.await?)
        };
        if is_busy {
            claim.note_contended();
        }
        let key = wire::key(queue, lease.id());
        let entry = Arc::new(RpcClaim::new(lease, key));
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
        queue: &QueuePath,
        entry: &RpcClaim,
    ) -> Result<Acquired, RequestError> {
        let rpc = wire::lock(&self.server, queue, entry.lease.id());
        pin!(rpc);
        let (started, mut is_first_look, mut is_silent) = (Instant::now(), true, false);
        loop {
            let pause = match () {
                () if is_first_look || !claim.wait() => LOOK_AFTER,
                () if is_silent => SILENCE_MAX,
                () => recheck_pause(self.ttl),
            };
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(Acquired::GaveUp),
                () = self.state.over() => return Err(SessionOver.into()),
                answer = &mut rpc => {
                    answer?;
                    return self.confirm(claim, queue, entry).await;
                }
                () = tokio::time::sleep(pause) => is_first_look = false,
            }
            let look = self.position(queue, entry);
            let position = tokio::select! {
                position = look => position,
                () = claim.give_up() => return Ok(Acquired::GaveUp),
            };
            match position {
                Ok(QueuePosition::Behind) => {
                    claim.note_contended();
                    if !claim.wait() {
                        return Ok(Acquired::GaveUp);
                    }
                    is_silent = false;
                }
                Ok(QueuePosition::First(_) | QueuePosition::Absent) if is_silent && claim.wait() => {
                    return Err(RequestError::no_reply());
                }
                Ok(QueuePosition::First(_) | QueuePosition::Absent) => is_silent = true,
                Err(fault) if fault.is_transient() => {
                    debug!(?fault, "the read of the queue was not answered")
                }
                Err(fault) => return Err(fault),
            }
            if !claim.wait() && started.elapsed() >= self.server.request_timeout() {
                return Err(RequestError::no_reply());
            }
        }
    }

    /// Grants the claim if its key is the first in the queue.
    async fn confirm(
        &self,
        claim: &Claim,
        queue: &QueuePath,
        entry: &RpcClaim,
    ) -> Result<Acquired, RequestError> {
        let mut pauses = retry_pauses();
        loop {
            match self.position(queue, entry).await {
                Ok(QueuePosition::First(created)) => {
                    let created = *entry.created.get_or_init(|| created);
                    let token = FencingToken::new(created.unsigned_abs());
                    return Ok(Acquired::Granted(Grant::new(claim, token, entry.lease.armed_at())));
                }
                Ok(QueuePosition::Behind | QueuePosition::Absent) => return Ok(Acquired::EntryGone),
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

    async fn position(&self, queue: &QueuePath, entry: &RpcClaim) -> Result<QueuePosition, RequestError> {
        let read = self.server.txn(wire::read_position(queue, &entry.key));
        wire::parse_position(&self.state.unless_over(read).await?)
    }

    /// Revokes the lease of a claim without a grant. Retries until that is answered, the lease must have expired, or the
    /// session is closed; then the close revokes it.
    async fn withdraw(&self, claim: &Claim, entry: &RpcClaim) {
        self.note_ended(entry);
        let may_pass = |fault: &RequestError| fault.is_transient() && !self.must_have_expired(entry);
        let revoke = || self.revoke(claim.id(), entry);
        if let Err(fault) = self.state.repeat_withdrawal(claim.id(), may_pass, revoke).await {
            // Nobody renews the lease any more. In the table, it would make a later `close` fail.
            debug!(?fault, claim = ?claim.id(), "not withdrawn; the lease ends with its ttl");
            self.table().remove(&claim.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::{acquire, bounded, fresh_name, is_entry_gone, start, try_acquire};
    use tonic::Code;

    use crate::{
        client::scripted::Fate,
        forms::rpc::tests::scripted,
        session::tests::{busy, first, foreign},
    };

    #[tokio::test(start_paused = true)]
    async fn try_whose_last_look_is_refused_fails_at_once() {
        let (script, session) = scripted().await;
        script.rule(busy("Txn"));
        bounded(try_acquire(&session, &fresh_name())).await.unwrap_err();
        assert_eq!((script.count("Txn"), script.leases()), (1, 0));
    }

    /// Heartbeats would renew it, and its key would be in the queue as long as the session lives.
    #[tokio::test(start_paused = true)]
    async fn claim_whose_rpc_returns_behind_another_leaves_neither_key_nor_lease() {
        let ((script, session), name) = (scripted().await, fresh_name());
        script.put(&foreign(&name), "");
        assert!(is_entry_gone(&start(&session, &name).ends().await));
        assert_eq!((script.leases(), script.keys("lockkit/")), (0, vec![foreign(&name)]));
    }

    /// A person who reads it must learn what has failed, and for which lock.
    #[tokio::test(start_paused = true)]
    async fn error_of_a_claim_or_a_release_names_its_operation_and_its_lock() {
        let ((script, session), name) = (scripted().await, fresh_name());
        let held = acquire(&session, &name).await;
        script.rule(|_| Fate::Refused(Code::PermissionDenied, "etcdserver: permission denied"));
        for (operation, failed) in [
            ("acquire", start(&session, &name).ends().await.map(drop)),
            ("release", session.release(&held).await),
        ] {
            let error = failed.unwrap_err();
            assert_eq!((error.operation(), error.lock()), (operation, Some(&name)), "{error}");
        }
    }

    /// Its key has ended with it.
    #[tokio::test(start_paused = true)]
    async fn release_of_a_hold_whose_lease_has_ended_succeeds_and_leaves_nothing_to_a_close() {
        let (script, session) = scripted().await;
        let held = acquire(&session, &fresh_name()).await;
        let gone = Fate::Refused(Code::NotFound, "etcdserver: requested lease not found");
        script.rule(first(1, "LeaseRevoke", gone));
        bounded(session.release(&held)).await.unwrap();
        script.take_calls();
        bounded(session.close()).await.unwrap();
        assert_eq!(script.count("LeaseRevoke"), 0);
    }
}
