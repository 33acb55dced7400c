//! The backend: what lock files promise, and the look from outside.

use std::{
    fs::File,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, LockName, Result,
    backend::{
        Admin, Backend, BackendInfo, BeatInterval, FailoverLoss, Inspection, Lifetime, Session, TokenStrength,
    },
};

use crate::{
    FileConfig,
    disk::{ANSWER_MAX, Disk},
    folder::Folder,
    holder, keys,
    session::FileSession,
};

/// The URL scheme.
pub const SCHEME: &str = "file";

/// Time between two checks that the lock files are still in place.
pub const BEAT: Duration = Duration::from_secs(1);

/// Locks that are files in one folder.
#[derive(Clone, Debug)]
pub struct FileBackend {
    folder: Arc<Folder>,
    disk: Disk,
    sessions: Arc<Mutex<Vec<Weak<FileSession>>>>,
}

impl FileBackend {
    /// Locks in the folder that `config` names. No I/O.
    pub fn new(config: FileConfig) -> Self {
        Self { folder: Arc::new(Folder::new(config.folder())), disk: Disk::new(), sessions: Arc::default() }
    }

    /// Another handle of the locked file behind a lock that a client of this backend holds now; `None` when none
    /// does.
    ///
    /// For a process that must outlive the holder's death: the lock belongs to the open file, so when this process is
    /// killed the lock lasts until whoever has inherited the handle has closed it too. An orderly release ends the
    /// lock at once, whatever handles there are.
    ///
    /// # Errors
    ///
    /// When this process cannot open another file.
    pub fn locked_file(&self, name: &LockName) -> io::Result<Option<File>> {
        let path = self.folder.join(keys::lock_file(name));
        self.sessions()
            .iter()
            .filter_map(Weak::upgrade)
            .find_map(|session| session.locked_file(&path))
            .transpose()
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Weak<FileSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for FileBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new(SCHEME, Lifetime::Process);
        info.beat = BeatInterval::Every(BEAT);
        info.token = TokenStrength::ClockFloor;
        info.failover = FailoverLoss::NoFailover;
        info
    }

    async fn open_session(&self, _ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let folder = Arc::clone(&self.folder);
        self.disk.look("open lock folder", ANSWER_MAX, move || folder.open()).await?;
        let session = Arc::new(FileSession::new(Arc::clone(&self.folder), self.disk.clone(), clock));
        let mut sessions = self.sessions();
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&session));
        Ok(session)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

#[async_trait]
impl Admin for FileBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let path = self.folder.join(keys::holder_file(name));
        let holder = self.disk.look("inspect", ANSWER_MAX, move || holder::look(&path)).await;
        // Waiters leave no trace in the folder.
        Ok(Inspection::new(holder.map_err(|error| error.with_lock(name))?, Vec::new()))
    }
}
