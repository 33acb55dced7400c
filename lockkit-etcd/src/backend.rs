//! etcd as a [`Backend`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Result,
    backend::{
        Admin, Backend, BackendInfo, FailoverLoss, Lifetime, LossDetection, Promises, QueueKind, Session,
        TokenStrength,
    },
};
use tracing::warn;

use crate::{EtcdConfig, Form, call::Server, forms::RpcSession, reach, session::EtcdSession};

/// The shortest ttl that a server with the default election timeout grants.
const TTL_MIN: Duration = Duration::from_secs(2);

/// The first patch release of each minor version without stale linearizable reads after a pause of the server process
/// (etcd #20418).
const SOUND_SINCE: [(u32, u32, u32); 3] = [(3, 4, 42), (3, 5, 28), (3, 6, 9)];

/// The etcd backend.
///
/// A client opens a connection to each endpoint for itself, and shares none with other code of the program: a large
/// read of the program must not delay a heartbeat (`docs/decisions/0035-existing-clients.md`). Share the
/// [`LockClient`](lockkit_core::LockClient) instead.
///
/// ```no_run
/// use lockkit_core::LockClient;
/// use lockkit_etcd::{EtcdBackend, EtcdConfig};
///
/// # async fn example() -> lockkit_core::Result<()> {
/// let backend = EtcdBackend::new(EtcdConfig::new(["127.0.0.1:2379"])?);
/// let client = LockClient::builder(backend).build().await?;
/// let guard = client.lock("orders/42")?.acquire().await?;
/// println!("writing with token {}", guard.token());
/// guard.release().await?;
/// client.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EtcdBackend {
    pub(crate) config: EtcdConfig,
}

impl EtcdBackend {
    /// Creates a backend from a configuration. No I/O.
    pub fn new(config: EtcdConfig) -> Self {
        Self { config }
    }
}

#[async_trait]
impl Backend for EtcdBackend {
    fn info(&self) -> BackendInfo {
        let lifetime = match self.config.form {
            Form::Queue | Form::Single => Lifetime::Session,
            Form::Rpc => Lifetime::Hold,
        };
        let mut info = BackendInfo::new("etcd", lifetime);
        info.ttl_min = TTL_MIN;
        info.powers = self.config.layout().powers();
        info
    }

    fn promises(&self) -> Promises {
        let (queue, loss) = match self.config.form {
            Form::Queue => (QueueKind::Fifo, LossDetection::SessionPushed),
            Form::Single => (QueueKind::Unordered, LossDetection::SessionPushed),
            // The server's queue is ordered, but a waiter's place in it ends with its connection.
            Form::Rpc => (QueueKind::Unordered, LossDetection::Heartbeat),
        };
        Promises::least()
            .with_queue(queue)
            .with_token(TokenStrength::History)
            .with_loss(loss)
            .with_failover(FailoverLoss::Nothing)
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let layout = self.config.layout();
        layout.check()?;
        let open = async {
            let server = Server::connect(&self.config).await?;
            if let Some(version) = server.version().await?
                && !is_sound(&version)
            {
                warn!(
                    version,
                    "this etcd has known faults that can break locks; 3.4.42, 3.5.28 and 3.6.9 have none"
                );
            }
            Ok(match self.config.form {
                Form::Queue | Form::Single => {
                    Arc::new(EtcdSession::open(server, layout, ttl, clock).await?) as Arc<dyn Session>
                }
                Form::Rpc => Arc::new(RpcSession::open(server, layout, ttl, clock).await?),
            })
        };
        match open.await {
            Ok(session) => Ok(session),
            Err(fault) => Err(reach::explain(&self.config, fault).await.into_error("open session")),
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

/// Returns whether a version is free of the known faults that can break locks.
fn is_sound(version: &str) -> bool {
    let numbers: Vec<u32> = version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect();
    let [major, minor, patch] = numbers[..] else { return false };
    match SOUND_SINCE.iter().find(|since| (since.0, since.1) == (major, minor)) {
        Some(since) => patch >= since.2,
        None => SOUND_SINCE.iter().all(|since| (major, minor) > (since.0, since.1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faulty_versions_are_known() {
        for version in ["3.4.23", "3.5.27", "3.6.8", "3.3.99", "2.3.8", "", "soon", "3.5"] {
            assert!(!is_sound(version), "{version}");
        }
        for version in ["3.4.42", "3.5.28", "3.6.9", "3.7.0", "4.0.0", "3.6.12-rc.1"] {
            assert!(is_sound(version), "{version}");
        }
    }

    /// As one from a URL, which is checked at once.
    #[tokio::test]
    async fn configuration_that_no_lock_name_can_repair_opens_no_session() {
        let config = EtcdConfig::new(["127.0.0.1:1"]).unwrap().guard("lockkit/x/");
        let opened = EtcdBackend::new(config).open_session(TTL_MIN, Clock::tokio()).await;
        assert_eq!(opened.map(drop).unwrap_err().kind(), lockkit_core::ErrorKind::InvalidConfig);
    }
}
