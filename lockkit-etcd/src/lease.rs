//! The client's lease. Every key that the client writes is attached to it, except pinned keys and records.
//!
//! Failure cases:
//!
//! * A ping is not answered in time. Replies do not name their ping: the k-th reply of a stream counts for its k-th
//!   ping. A late reply must not count for a later ping, so a stream with an unanswered ping is dropped.
//! * A member is cut from the others: its streams stay open and silent. The next ping opens a stream of its own, at a
//!   member that the balancer picks, while the first one still waits.
//! * The stream has broken since the last heartbeat. The ping fails at once, and is sent again on a new stream.
//! * The lease has ended. The reply has a ttl of 0, or a new stream fails with "lease not found".

use std::{sync::Mutex, time::Duration};

use lockkit_core::{BootInstant, Clock, lease, limits::RETRY_PAUSE_MIN, support::lock};

use crate::{
    call::Server,
    client::{Client, LeaseKeepAliveStream, LeaseKeeper, LeaseTimeToLiveOptions, LeaseTimeToLiveResponse},
    error::RequestError,
    keys::LeaseId,
    wire::revision_of,
};

/// A lease, and the send time of the last request that has renewed it.
#[derive(Debug)]
pub(crate) struct Lease {
    id: LeaseId,
    ttl: Duration,
    clock: Clock,
    armed_at: Mutex<BootInstant>,
    /// The open keep-alive stream; taken out while a ping is unanswered.
    stream: Mutex<Option<(LeaseKeeper, LeaseKeepAliveStream)>>,
}

impl Lease {
    /// Requests a lease.
    pub(crate) async fn grant(server: &Server, ttl: Duration, clock: Clock) -> Result<Self, RequestError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let armed_at = clock.now();
        let request = |client: &Client| {
            let mut lease = client.lease_client();
            async move { lease.grant(seconds).await }
        };
        let answer = server.call(request).await?;
        let granted =
            u64::try_from(answer.ttl()).map_err(|_| RequestError::unexpected("a lease without a ttl"))?;
        Ok(Self {
            id: answer.id(),
            // The server raises a ttl that is below its minimum.
            ttl: Duration::from_secs(granted),
            clock,
            armed_at: Mutex::new(armed_at),
            stream: Mutex::default(),
        })
    }

    /// Requests another lease, by the same clock.
    pub(crate) async fn another(&self, server: &Server, ttl: Duration) -> Result<Self, RequestError> {
        Self::grant(server, ttl, self.clock.clone()).await
    }

    /// Reads the clock that the lease is measured by.
    pub(crate) fn now(&self) -> BootInstant {
        self.clock.now()
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the earliest instant at which the lease can end, by the clock of its request: the server's may be faster.
    pub(crate) fn end(&self) -> BootInstant {
        lease::deadline(self.armed_at(), self.ttl)
    }

    /// Returns the start of the lifetime: when the last answered ping, or the grant request, was sent.
    pub(crate) fn armed_at(&self) -> BootInstant {
        *lock(&self.armed_at)
    }

    /// Renews the lease within `window`. Returns the new start of its lifetime.
    pub(crate) async fn renew(&self, server: &Server, window: Duration) -> Result<BootInstant, RequestError> {
        let pings = || async {
            loop {
                match self.ping(server).await {
                    Err(fault) if fault.is_transient() => tokio::time::sleep(RETRY_PAUSE_MIN).await,
                    answer => return answer,
                }
            }
        };
        let armed_at = server.repeat(window, pings).await?;
        let mut latest = lock(&self.armed_at);
        *latest = latest.max(armed_at);
        Ok(armed_at)
    }

    /// Sends one ping and awaits its reply. The stream is put back only if no ping is unanswered.
    async fn ping(&self, server: &Server) -> Result<BootInstant, RequestError> {
        let open = lock(&self.stream).take();
        let armed_at = self.clock.now();
        let stream = match open {
            Some((mut keeper, mut answers)) => {
                keeper.keep_alive().await?;
                let answer = answers.message().await?.ok_or_else(RequestError::no_reply)?;
                if answer.ttl() <= 0 {
                    return Err(RequestError::lease_gone());
                }
                (keeper, answers)
            }
            // Opening a stream sends the first ping and awaits its reply.
            None => {
                let id = self.id;
                let request = |client: &Client| {
                    let mut lease = client.lease_client();
                    async move { lease.keep_alive(id).await }
                };
                server.call(request).await?
            }
        };
        *lock(&self.stream) = Some(stream);
        Ok(armed_at)
    }

    /// Returns the keys that are attached to the lease, as one member knows them. Returns none if that member lags
    /// behind a revision that this client has seen.
    pub(crate) async fn keys(&self, server: &Server) -> Result<Vec<Vec<u8>>, RequestError> {
        let known = server.highest_revision();
        let answer = look_up(server, self.id).await?;
        // The remaining whole seconds: 0 in the last second, -1 for a lease that does not exist.
        if answer.ttl() < 0 {
            return Err(RequestError::lease_gone());
        }
        let revision = revision_of(answer.header())?;
        server.saw(revision);
        Ok(if revision < known { Vec::new() } else { answer.keys().to_vec() })
    }

    /// Revokes the lease; the server deletes its keys.
    pub(crate) async fn revoke(&self, server: &Server) -> Result<(), RequestError> {
        drop(lock(&self.stream).take());
        revoke(server, self.id).await
    }
}

async fn revoke(server: &Server, id: LeaseId) -> Result<(), RequestError> {
    let request = |client: &Client| {
        let mut lease = client.lease_client();
        async move { lease.revoke(id).await }
    };
    server.call(request).await.map(drop)
}

async fn look_up(server: &Server, id: LeaseId) -> Result<LeaseTimeToLiveResponse, RequestError> {
    let request = |client: &Client| {
        let mut lease = client.lease_client();
        async move { lease.time_to_live(id, Some(LeaseTimeToLiveOptions::new().with_keys())).await }
    };
    server.call(request).await
}

/// Revokes a lease that nothing uses any more. Another program may have attached keys to it: then it stays.
pub(crate) async fn revoke_unused(server: &Server, id: LeaseId) -> Result<(), RequestError> {
    match look_up(server, id).await?.keys() {
        [] => revoke(server, id).await,
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{
        client::scripted::{Fate, Script},
        session::tests::{REQUEST, TTL, first, server},
    };

    /// The server may have granted it as soon as the request was sent.
    #[tokio::test(start_paused = true)]
    async fn lifetime_of_a_new_lease_counts_from_its_request() {
        let (script, clock) = (Script::default(), Clock::tokio());
        // Of two endpoints, so the request is repeated until it is sent.
        let server = server(&script, 2);
        script.rule(first(20, "LeaseGrant", Fate::NotSent));
        let (since, asked_at) = (Instant::now(), clock.now());
        let lease = Lease::grant(&server, TTL, clock).await.unwrap();
        assert!(since.elapsed() > Duration::ZERO);
        assert_eq!(lease.armed_at(), asked_at);
    }

    /// Otherwise a pinned hold would be believed when its key is gone.
    #[tokio::test(start_paused = true)]
    async fn lease_may_end_early_by_the_error_of_the_clocks() {
        let script = Script::default();
        let lease = Lease::grant(&server(&script, 1), 1_000 * TTL, Clock::tokio()).await.unwrap();
        assert!(lease.end() <= lease.armed_at().after(lease.ttl() / 101 * 100), "{lease:?}");
    }

    /// The server reports whole seconds.
    #[tokio::test(start_paused = true)]
    async fn lease_in_its_last_second_has_not_ended() {
        let script = Script::default();
        let server = server(&script, 1);
        let lease = Lease::grant(&server, Duration::ZERO, Clock::tokio()).await.unwrap();
        script.put_leased("x", "", lease.id());
        assert_eq!(lease.keys(&server).await.unwrap(), [b"x"]);
        lease.revoke(&server).await.unwrap();
        lease.keys(&server).await.unwrap_err();
    }

    /// So do those of the grants that follow.
    #[tokio::test(start_paused = true)]
    async fn lifetime_counts_from_the_latest_ping() {
        let (script, clock) = (Script::default(), Clock::tokio());
        let server = server(&script, 1);
        let lease = Lease::grant(&server, TTL, clock.clone()).await.unwrap();
        for _ in 0..2 {
            tokio::time::advance(Duration::from_secs(1)).await;
            let sent_at = clock.now();
            assert_eq!(lease.renew(&server, REQUEST).await.unwrap(), sent_at);
            assert_eq!(lease.armed_at(), sent_at);
        }
    }

    /// To open one costs the server more than a ping.
    #[tokio::test(start_paused = true)]
    async fn pings_of_a_lease_share_one_stream_until_its_end() {
        let server = server(&Script::default(), 1);
        let lease = Lease::grant(&server, TTL, Clock::tokio()).await.unwrap();
        for _ in 0..2 {
            lease.renew(&server, REQUEST).await.unwrap();
            assert!(lock(&lease.stream).is_some());
        }
        lease.revoke(&server).await.unwrap();
        assert!(lock(&lease.stream).is_none());
    }

    /// So an older list of another member is known to be older.
    #[tokio::test(start_paused = true)]
    async fn list_of_keys_shows_how_far_the_store_is() {
        let script = Script::default();
        let server = server(&script, 1);
        let lease = Lease::grant(&server, TTL, Clock::tokio()).await.unwrap();
        script.put_leased("x", "", lease.id());
        lease.keys(&server).await.unwrap();
        assert_eq!(server.highest_revision(), 1);
    }
}
