//! A connection and the claims made over it as a [`Session`].
//!
//! Redis has no sessions: every lock has a lifetime of its own. [`acquire`] follows a claim up to its grant,
//! [`release`] ends it, [`heartbeat`] renews it, and [`server`](crate::server) keeps the connection.
//!
//! When the session is closed, every running acquire withdraws its claim. Everything held is released, except what is
//! pinned. What the server does not confirm expires with its ttl.

mod acquire;
mod expiry;
mod heartbeat;
mod messages;
mod powers;
mod registry;
mod release;
mod replicas;
mod waiting;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Error, ErrorKind, LockName, Result,
    backend::{Acquired, Claim, Elections, Grant, Loss, Pins, Records, Renewals, Session},
};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "_fuzzing")]
pub(crate) use self::powers::parse_leader;
use self::{
    expiry::ExpiryChecks, messages::ClaimMessages, powers::Observers, registry::ClaimRegistry,
    replicas::Replicas,
};
pub(crate) use self::{registry::ClaimEntry, release::find_next};
use crate::{
    Queue, RedisConfig,
    error::RequestError,
    keys::{CHANNEL, Layout},
    server::Server,
    wire::ScriptParams,
};

/// A session.
#[derive(Debug)]
pub(crate) struct RedisSession {
    server: Server,
    layout: Layout,
    params: ScriptParams,
    ttl: Duration,
    /// Whether claims queue; otherwise they poll.
    queues: bool,
    clock: Clock,
    claims: Arc<ClaimRegistry>,
    observers: Arc<Observers>,
    expiry_checks: ExpiryChecks,
    /// Set where a grant counts only when replicas acknowledged it.
    replicas: Option<Replicas>,
    closed: CancellationToken,
}

impl RedisSession {
    /// Connects, and starts the task that keeps the observers subscribed.
    pub(crate) async fn open(
        config: &RedisConfig,
        params: ScriptParams,
        clock: Clock,
    ) -> Result<Self, RequestError> {
        let (claims, observers) = (Arc::<ClaimRegistry>::default(), Arc::<Observers>::default());
        let channel = format!("{CHANNEL}{}", params.client);
        let messages =
            ClaimMessages { channel, claims: Arc::clone(&claims), observers: Arc::clone(&observers) };
        let server = Server::connect(config.connector(), Arc::new(messages)).await?;
        let (info, ()) = tokio::try_join!(server.info(), server.check_publish_right())?;
        if let Some(info) = &info {
            info.log_warnings(config.min_replicas.is_some());
        }
        let replicas = match config.min_replicas {
            Some(count) => Some(Replicas::connect(config.connector(), count).await?),
            None => None,
        };
        tokio::spawn(Arc::clone(&observers).keep_subscribed(server.connections(), server.request_timeout()));
        Ok(Self {
            server,
            layout: config.layout(),
            ttl: Duration::from_millis(params.ttl_ms),
            params,
            queues: config.queue_in_use() == Queue::Fifo,
            clock,
            claims,
            observers,
            expiry_checks: ExpiryChecks::default(),
            replicas,
            closed: CancellationToken::new(),
        })
    }

    /// Fails once the session is closed.
    fn check_open(&self, operation: &'static str, name: &LockName) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, operation).with_lock(name));
        }
        Ok(())
    }
}

#[async_trait]
impl Session for RedisSession {
    fn ttl(&self) -> Duration {
        self.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        self.acquire_claim(&claim).await
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        if self.closed.is_cancelled() {
            return heartbeat::unknown_renewals(held, &RequestError::session_closed());
        }
        self.heartbeat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        self.check_open("release", grant.name())?;
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(()) };
        self.release_claim(&entry).await.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Loss::Session,
            // Nothing else is reported: when a lock expires, Redis runs nothing.
            broken = self.claims.broken.next() => Loss::Grant(broken),
        }
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        self.claims.all_settled().await;
        self.forget_ended(Duration::ZERO);
        let entries = self.claims.all();
        let endings = entries.iter().map(|entry| self.end_with_session(entry));
        let unconfirmed = futures_util::future::join_all(endings).await.into_iter().find_map(Result::err);
        unconfirmed.map_or(Ok(()), |fault| Err(fault.into_error("close")))
    }

    fn elections(&self) -> Option<&dyn Elections> {
        Some(self)
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }

    fn pins(&self) -> Option<&dyn Pins> {
        Some(self)
    }
}

/// Ends the waits of a session that was dropped without a close. Its holds expire with their ttl.
impl Drop for RedisSession {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use lockkit_conformance::direct::{HANG, LONG, acquire, bounded, fresh_name, try_acquire};
    use lockkit_core::{
        Metadata,
        backend::{Admin, Backend, Contender},
    };

    use super::*;
    use crate::{
        RedisBackend,
        tests::scripted::{Answer, ScriptedServer, greeting},
    };

    /// A client has many locks, and its log shows no more than this.
    #[tokio::test]
    async fn each_error_names_its_lock_and_its_operation() {
        let is_busy = Arc::<AtomicBool>::default();
        let refuses = Arc::clone(&is_busy);
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| {
                let answer = match &*words[0] {
                    "EVALSHA" if refuses.load(SeqCst) => "-BUSY Redis is busy running a script.\r\n",
                    "EVALSHA" => ":7\r\n",
                    _ => return greeting(words),
                };
                Answer::Text(answer.to_owned())
            }
        });
        let config = RedisConfig::new([server.await.address.to_string()]).unwrap().request_timeout(HANG);
        let (backend, name) = (RedisBackend::new(config), fresh_name());
        let session = backend.open_session(LONG, Clock::boot()).await.unwrap();
        let held = acquire(&session, &name).await;
        is_busy.store(true, SeqCst);
        let shown = Contender::new(held.claim().to_string(), Some(held.token()), None);
        let (elections, records) = (session.elections().unwrap(), session.records().unwrap());
        let (pins, metadata) = (session.pins().unwrap(), Metadata::of_this_process(None));
        let answers = [
            ("acquire", try_acquire(&session, &name).await.map(drop)),
            ("inspect", bounded(backend.inspect(&name)).await.map(drop)),
            ("break", bounded(backend.break_lock(&name, &shown)).await.map(drop)),
            ("leader", bounded(elections.leader(&name)).await.map(drop)),
            ("watch", bounded(elections.watch(&name)).await.map(drop)),
            ("proclaim", bounded(elections.proclaim(&held, &metadata)).await.map(drop)),
            ("read record", bounded(records.read(&name)).await.map(drop)),
            ("write record", bounded(records.write(&held, "text", LONG)).await.map(drop)),
            ("pin", bounded(pins.pin(&held, LONG)).await.map(drop)),
            ("leave", bounded(pins.leave(&held)).await),
            ("release", bounded(session.release(&held)).await),
        ];
        for (operation, answer) in answers {
            let error = answer.unwrap_err();
            assert_eq!((error.operation(), error.lock()), (operation, Some(&name)), "{error}");
        }
    }
}
