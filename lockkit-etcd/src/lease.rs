//! The client's lease: everything that it writes hangs on it.
//!
//! Failure cases:
//!
//! * A ping is not answered in time: replies name no ping, so the k-th reply of a stream is taken for the answer to its
//!   k-th ping, and a stream with a ping outstanding is thrown away: a late reply must not count for a later ping.
//! * The stream has broken since the last beat: the ping fails at once, and goes out on a new stream.
//! * The lease has ended: a reply with a ttl of 0, or "lease not found" on a new stream.

use std::{sync::Mutex, time::Duration};

use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper, LeaseTimeToLiveOptions};
use lockkit_core::{BootInstant, Clock, limits::RETRY_PAUSE_MIN};

use crate::{
    call::{Server, bounded},
    error::Fault,
    keys::LeaseId,
    txn::revision_of,
};

/// A lease, and the send time of the last request that is known to have started its lifetime.
#[derive(Debug)]
pub(crate) struct Lease {
    id: LeaseId,
    ttl: Duration,
    clock: Clock,
    armed_at: Mutex<BootInstant>,
    /// The open keep-alive stream; taken out while a ping is outstanding.
    stream: Mutex<Option<(LeaseKeeper, LeaseKeepAliveStream)>>,
}

impl Lease {
    /// Asks for a lease.
    pub(crate) async fn grant(server: &Server, ttl: Duration, clock: Clock) -> Result<Self, Fault> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let armed_at = clock.now();
        let request = |client: &Client| {
            let mut lease = client.lease_client();
            async move { lease.grant(seconds, None).await }
        };
        let answer = server.call(request).await?;
        let granted = u64::try_from(answer.ttl()).map_err(|_| Fault::nonsense("a lease without a ttl"))?;
        Ok(Self {
            id: answer.id(),
            // The server raises what is below its minimum.
            ttl: Duration::from_secs(granted),
            clock,
            armed_at: Mutex::new(armed_at),
            stream: Mutex::default(),
        })
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Start of the lifetime that the last answered ping, or the grant, has proved.
    pub(crate) fn armed_at(&self) -> BootInstant {
        *lock(&self.armed_at)
    }

    /// Renews the lease; answers the new start of its lifetime. Ends within `window`.
    pub(crate) async fn renew(&self, server: &Server, window: Duration) -> Result<BootInstant, Fault> {
        let pings = async {
            loop {
                match self.ping(server).await {
                    Err(fault) if fault.may_pass() => tokio::time::sleep(RETRY_PAUSE_MIN).await,
                    answer => return answer,
                }
            }
        };
        let armed_at = bounded(window, pings).await?;
        let mut latest = lock(&self.armed_at);
        *latest = latest.max(armed_at);
        Ok(armed_at)
    }

    /// One ping and its answer. The stream is put back only with no ping outstanding.
    async fn ping(&self, server: &Server) -> Result<BootInstant, Fault> {
        let open = lock(&self.stream).take();
        let armed_at = self.clock.now();
        let stream = match open {
            Some((mut keeper, mut answers)) => {
                keeper.keep_alive().await?;
                let answer = answers.message().await?.ok_or_else(Fault::no_reply)?;
                if answer.ttl() <= 0 {
                    return Err(Fault::lease_gone());
                }
                (keeper, answers)
            }
            // Opening a stream sends the first ping and waits for its answer.
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

    /// The keys that hang on the lease, as the member knows it that was asked; none where it knows less than this client.
    pub(crate) async fn keys(&self, server: &Server) -> Result<Vec<Vec<u8>>, Fault> {
        let known = server.highest_revision();
        let id = self.id;
        let request = |client: &Client| {
            let mut lease = client.lease_client();
            async move { lease.time_to_live(id, Some(LeaseTimeToLiveOptions::new().with_keys())).await }
        };
        let answer = server.call(request).await?;
        // What is left, in whole seconds: 0 in the last second, -1 for a lease that is not there.
        if answer.ttl() < 0 {
            return Err(Fault::lease_gone());
        }
        let revision = revision_of(answer.header())?;
        server.saw(revision);
        Ok(if revision < known { Vec::new() } else { answer.keys().to_vec() })
    }

    /// Ends the lease and everything that hangs on it.
    pub(crate) async fn revoke(&self, server: &Server) -> Result<(), Fault> {
        let id = self.id;
        drop(lock(&self.stream).take());
        let request = |client: &Client| {
            let mut lease = client.lease_client();
            async move { lease.revoke(id).await }
        };
        server.call(request).await.map(drop)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
