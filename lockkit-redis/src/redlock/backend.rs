//! A set of nodes as a [`Backend`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Result,
    backend::{Admin, Backend, BackendInfo, FailoverLoss, Lifetime, Promises, Session, TokenStrength},
};
use tokio_util::sync::CancellationToken;

use super::{
    RedlockConfig, SCHEME_REDLOCK,
    hints::Hints,
    membership::{Rejoiner, join, look_at_majority, warn_in_background},
    session::{RedlockSession, SessionContext},
    wire::RequestBuilder,
};
use crate::error::RequestError;

/// With a shorter ttl, a pause of a busy machine would end holds.
const TTL_MIN: Duration = Duration::from_secs(1);

/// The fraction of a ttl that one request may take. An attempt takes up to two requests in sequence and a clean-up, and
/// a heartbeat must end before the next one. Not the first request at a node, which includes connecting and the login:
/// over a slow link it takes several round trips.
const REQUESTS_PER_TTL: u32 = 4;

/// Independent Redis servers as a lock store: the client that has a lock at a majority of them holds it.
///
/// Its sessions offer elections, whose observers poll, and records. After nodes have lost their data, a record may be
/// unreadable (`Unavailable`) until it is written again or its time is over, but never falls back to an earlier one. To
/// give such records up, delete the field `lost` of the key `lockkit:redlock` at every node. There are no holds that
/// outlast their holder, and no evidence for writes at one of the servers, which cannot know who has a majority.
///
/// ```no_run
/// use lockkit_core::LockClient;
/// use lockkit_redis::{RedisConfig, RedlockBackend, RedlockConfig};
///
/// # async fn example() -> lockkit_core::Result<()> {
/// let nodes = RedisConfig::new(["10.0.0.1", "10.0.1.1", "10.0.2.1"])?;
/// let config = RedlockConfig::new(nodes)?;
/// lockkit_redis::init(&config).await?; // once, before the first client
/// let client = LockClient::builder(RedlockBackend::new(config)).build().await?;
/// let guard = client.lock("orders/42")?.acquire().await?;
/// println!("writing with token {}", guard.token());
/// guard.release().await?;
/// client.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RedlockBackend {
    pub(super) config: RedlockConfig,
}

impl RedlockBackend {
    /// Returns a backend for this configuration. Does no I/O.
    pub fn new(config: RedlockConfig) -> Self {
        Self { config }
    }

    async fn open(&self, ttl: Duration, clock: Clock) -> Result<RedlockSession, RequestError> {
        let (config, ttl) = (&self.config, ttl.clamp(TTL_MIN, self.config.max_ttl));
        // Whole milliseconds, rounded up.
        let ttl_ms = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let keep_ms = u64::try_from(config.counter_ttl().as_millis()).unwrap_or(u64::MAX).max(ttl_ms);
        let requests = RequestBuilder { ttl_ms, keep_ms };
        let ttl = Duration::from_millis(requests.ttl_ms);
        let (hints, broken) = Hints::of_session();
        let mut nodes = config.connect_with(config.request_timeout(), hints);
        let observations = look_at_majority(&nodes).await;
        nodes.limit = nodes.limit.min(ttl / REQUESTS_PER_TTL);
        join(&nodes, &observations, config.max_ttl)?;
        warn_in_background(&nodes);
        let closed = CancellationToken::new();
        let rejoiner = Rejoiner::new(nodes.clone(), config.max_ttl, clock.clone(), closed.clone());
        for (number, answer) in observations {
            if answer.is_ok_and(|state| !rejoiner.counts(number, &state)) {
                rejoiner.start_rejoin(number);
            }
        }
        let context = SessionContext { nodes, requests, ttl, clock, rejoiner };
        Ok(RedlockSession::new(context, config.layout(), closed, broken))
    }
}

#[async_trait]
impl Backend for RedlockBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new(SCHEME_REDLOCK, Lifetime::Hold);
        info.ttl_min = TTL_MIN;
        info.ttl_max = self.config.max_ttl;
        info.powers.elections = true;
        info.powers.records = true;
        info.powers.list = self.config.layout().tells_locks_apart();
        info.powers.break_lock = true;
        info
    }

    fn promises(&self) -> Promises {
        Promises::least().with_token(TokenStrength::ClockFloor).with_failover(FailoverLoss::Nothing)
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        match self.open(ttl, clock).await {
            Ok(session) => Ok(Arc::new(session)),
            Err(fault) => Err(fault.into_error("open session")),
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}
