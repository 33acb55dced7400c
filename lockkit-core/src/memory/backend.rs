//! The memory server as a [`Backend`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{MemoryServer, session::MemorySession};
use crate::{
    Clock, Result,
    backend::{
        Admin, Backend, BackendInfo, FailoverLoss, Lifetime, LossDetection, Promises, QueueKind, Session,
    },
};

/// Connects a client to a [`MemoryServer`].
#[derive(Clone, Debug)]
pub struct MemoryBackend {
    pub(super) server: MemoryServer,
}

impl MemoryBackend {
    pub(super) fn new(server: MemoryServer) -> Self {
        Self { server }
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("memory", Lifetime::Session);
        info.ttl_min = Duration::from_millis(10);
        (info.powers.elections, info.powers.leader_watch) = (true, true);
        (info.powers.records, info.powers.pins) = (true, true);
        (info.powers.list, info.powers.break_lock) = (true, true);
        info
    }

    fn promises(&self) -> Promises {
        Promises::least()
            .with_queue(QueueKind::Fifo)
            .with_loss(LossDetection::SessionPushed)
            .with_failover(FailoverLoss::NoFailover)
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let armed_at = clock.now();
        let request = self.server.request("open session", move |store| store.open(ttl, Instant::now()));
        let opened = super::session::answered("open session", ttl, request).await?;
        Ok(Arc::new(MemorySession::new(self.server.clone(), opened, ttl, clock, armed_at)))
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}
