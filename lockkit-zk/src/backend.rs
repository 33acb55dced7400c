//! ZooKeeper as a [`Backend`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Result,
    backend::{
        Admin, Backend, BackendInfo, FailoverLoss, HeartbeatInterval, Lifetime, LossDetection, Promises,
        QueueKind, Session, TokenStrength,
    },
};

use crate::{
    ZkConfig,
    connect::explained,
    keys::Form,
    session::{GrantedNodes, HEARTBEATS_PER_TTL, ZkSession},
};

/// The shortest ttl that is requested. A server with the default tick grants at least 4 s.
const TTL_MIN: Duration = Duration::from_secs(2);

/// ZooKeeper as a lock store.
///
/// ```no_run
/// use lockkit_core::LockClient;
/// use lockkit_zk::{ZkBackend, ZkConfig};
///
/// # async fn example() -> lockkit_core::Result<()> {
/// let backend = ZkBackend::new(ZkConfig::new(["127.0.0.1:2181"])?);
/// let client = LockClient::builder(backend).build().await?;
/// let guard = client.lock("orders/42")?.acquire().await?;
/// println!("writing with token {}", guard.token());
/// guard.release().await?;
/// client.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ZkBackend {
    pub(crate) config: ZkConfig,
    pub(crate) granted_nodes: Arc<GrantedNodes>,
}

impl ZkBackend {
    /// Returns a backend for this configuration. No I/O.
    pub fn new(config: ZkConfig) -> Self {
        Self { config, granted_nodes: Arc::default() }
    }
}

#[async_trait]
impl Backend for ZkBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("zk", Lifetime::Session);
        info.ttl_min = TTL_MIN;
        info.heartbeat = HeartbeatInterval::PerTtl(HEARTBEATS_PER_TTL);
        info.powers = self.config.layout().form.powers();
        info
    }

    fn promises(&self) -> Promises {
        let queue = match self.config.layout().form {
            Form::Curator | Form::Bare => QueueKind::Fifo,
            Form::Single => QueueKind::Unordered,
        };
        Promises::least()
            .with_queue(queue)
            .with_token(TokenStrength::History)
            .with_loss(LossDetection::SessionPushed)
            .with_failover(FailoverLoss::Nothing)
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        match ZkSession::open(&self.config, Arc::clone(&self.granted_nodes), ttl, clock).await {
            Ok(session) => Ok(Arc::new(session)),
            Err(error) => Err(explained(&self.config, error).await.into_error("open session")),
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(form: Form) -> ZkBackend {
        ZkBackend::new(ZkConfig::new(["h"]).unwrap().form(form))
    }

    #[test]
    fn only_a_queue_promises_an_order() {
        for (form, queue) in [
            (Form::Curator, QueueKind::Fifo),
            (Form::Bare, QueueKind::Fifo),
            (Form::Single, QueueKind::Unordered),
        ] {
            assert_eq!(backend(form).promises().queue, queue, "{form:?}");
        }
    }

    #[test]
    fn powers_depend_on_whether_names_recur() {
        for (form, identifies, is_queue) in
            [(Form::Curator, true, true), (Form::Bare, false, true), (Form::Single, false, false)]
        {
            let powers = backend(form).info().powers;
            let of_names = [powers.elections, powers.leader_watch, powers.records, powers.evidence];
            assert_eq!(of_names, [identifies; 4], "{form:?}");
            assert_eq!((powers.list, powers.break_lock), (true, is_queue), "{form:?}");
        }
    }
}
