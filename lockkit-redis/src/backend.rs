//! Redis as a [`Backend`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Result,
    backend::{Admin, Backend, BackendInfo, Lifetime, Promises, QueueKind, Session, TokenStrength},
    limits::TTL_MAX,
};

use crate::{Queue, RedisConfig, session::RedisSession, wire::ScriptParams};

/// A shorter ttl could expire in a pause of a busy machine.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A queue outlives the longest pause between two re-checks of its waiters.
const QUEUE_TTL_MIN: Duration = Duration::from_secs(2 * TTL_MAX.as_secs());

/// Redis as a lock store.
///
/// ```no_run
/// use lockkit_core::LockClient;
/// use lockkit_redis::{RedisBackend, RedisConfig};
///
/// # async fn example() -> lockkit_core::Result<()> {
/// let backend = RedisBackend::new(RedisConfig::new(["127.0.0.1:6379"])?);
/// let client = LockClient::builder(backend).build().await?;
/// let guard = client.lock("orders/42")?.acquire().await?;
/// println!("writing with token {}", guard.token());
/// guard.release().await?;
/// client.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RedisBackend {
    pub(crate) config: RedisConfig,
}

impl RedisBackend {
    /// Returns the backend for this configuration. No I/O.
    pub fn new(config: RedisConfig) -> Self {
        Self { config }
    }

    /// Returns the parameters of the scripts of a new client.
    pub(crate) fn script_params(&self, ttl: Duration) -> ScriptParams {
        ScriptParams {
            client: format!("{:016x}", fastrand::u64(..)),
            // Whole milliseconds, rounded up.
            ttl_ms: u64::try_from(ttl.max(TTL_MIN).as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
            counter_ttl_ms: milliseconds(self.config.counter_ttl),
            linger_ms: milliseconds(self.config.counter_ttl.max(QUEUE_TTL_MIN)),
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait]
impl Backend for RedisBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("redis", Lifetime::Hold);
        info.ttl_min = TTL_MIN;
        info.powers.evidence = true;
        (info.powers.elections, info.powers.leader_watch) = (true, true);
        info.powers.records = true;
        info.powers.pins = true;
        info.powers.list = self.config.layout().tells_locks_apart();
        info.powers.break_lock = true;
        info
    }

    fn promises(&self) -> Promises {
        let queue = match self.config.queue_in_use() {
            Queue::Fifo => QueueKind::Fifo,
            Queue::None => QueueKind::Unordered,
        };
        Promises::least().with_queue(queue).with_token(TokenStrength::ClockFloor)
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        match RedisSession::open(&self.config, self.script_params(ttl), clock).await {
            Ok(session) => Ok(Arc::new(session)),
            Err(fault) => Err(fault.into_error("open session")),
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::{HANG, LONG};
    use lockkit_core::{ErrorKind, backend::BackendUrl};

    use super::*;
    use crate::{
        tests::scripted::{Answer, ScriptedServer, greeting},
        topology::Address,
    };

    /// Starts a server that answers `with` to this command.
    async fn answering(command: &'static str, with: &'static str) -> Address {
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| {
                if words[0] == command { Answer::Text(with.to_owned()) } else { greeting(words) }
            }
        });
        server.await.address
    }

    /// The others may come back: a client that waits for the store must not give up.
    #[tokio::test]
    async fn refusal_is_final_only_if_all_servers_refuse() {
        let refusing = answering("HELLO", "-WRONGPASS invalid username-password pair\r\n").await;
        let not_ready = answering("CLUSTER", "-CLUSTERDOWN The cluster is down\r\n").await;
        let closed = "127.0.0.1:1";
        for (url, kind) in [
            (format!("redis://{refusing},{refusing}"), ErrorKind::Denied),
            (format!("redis://{closed},{refusing}"), ErrorKind::Unavailable),
            (format!("redis+sentinel://{refusing},{refusing}/main"), ErrorKind::Denied),
            (format!("redis+sentinel://{closed},{refusing}/main"), ErrorKind::Unavailable),
            (format!("redis+cluster://{refusing}"), ErrorKind::Denied),
            (format!("redis+cluster://{closed},{refusing}"), ErrorKind::Unavailable),
            (format!("redis+cluster://{not_ready},{refusing}"), ErrorKind::Unavailable),
        ] {
            let config = RedisConfig::from_url(BackendUrl::parse(&url).unwrap()).unwrap();
            let backend = RedisBackend::new(config.request_timeout(HANG));
            let error = backend.open_session(LONG, Clock::boot()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{url}: {error}");
        }
    }

    /// The advice to a server's user leads to another setting.
    #[tokio::test]
    async fn refused_login_to_one_sentinel_of_several_names_the_login_to_sentinels() {
        let refusing = answering("HELLO", "-NOAUTH Authentication required.\r\n").await;
        let url = format!("redis+sentinel://127.0.0.1:1,{refusing}/main");
        let backend = RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(&url).unwrap()).unwrap());
        let error = backend.open_session(LONG, Clock::boot()).await.unwrap_err().to_string();
        assert!(error.contains("sentinel_password") && !error.contains("LOCKKIT_PASSWORD"), "{error}");
    }
}
