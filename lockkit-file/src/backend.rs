//! The backend: what lock files promise, and the look from outside.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, LockName, Result,
    backend::{
        Admin, Backend, BackendInfo, BeatInterval, FailoverLoss, Inspection, Lifetime, LossDetection,
        QueueKind, Session, TokenStrength,
    },
    limits::TTL_MAX,
};

use crate::{FileConfig, blocking::blocking, folder::Folder, holder, keys, session::FileSession};

/// The URL scheme.
pub const SCHEME: &str = "file";

/// Time between two checks that the lock files are still in place.
pub const BEAT: Duration = Duration::from_secs(1);

/// Locks that are files in one folder.
#[derive(Clone, Debug)]
pub struct FileBackend {
    folder: Arc<Folder>,
}

impl FileBackend {
    pub(crate) fn new(config: FileConfig) -> Self {
        Self { folder: Arc::new(Folder::new(config.folder())) }
    }
}

#[async_trait]
impl Backend for FileBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            scheme: SCHEME,
            ttl_min: Duration::ZERO,
            ttl_max: TTL_MAX,
            beat: BeatInterval::Every(BEAT),
            lifetime: Lifetime::Process,
            queue: QueueKind::Unordered,
            token: TokenStrength::ClockFloor,
            loss: LossDetection::Beat,
            failover: FailoverLoss::NoFailover,
        }
    }

    async fn open_session(&self, _ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let folder = Arc::clone(&self.folder);
        blocking("open lock folder", move || folder.open()).await?;
        Ok(Arc::new(FileSession::new(Arc::clone(&self.folder), clock)))
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

#[async_trait]
impl Admin for FileBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let path = self.folder.join(keys::holder_file(name));
        let holder = blocking("inspect", move || holder::look(&path)).await;
        // Waiters leave no trace in the folder.
        Ok(Inspection { holder: holder.map_err(|error| error.with_lock(name))?, waiters: Vec::new() })
    }
}
