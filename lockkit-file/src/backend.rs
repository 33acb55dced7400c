//! Lock files as a [`Backend`].

use std::{
    fs::File,
    io,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, LockName, Result,
    backend::{
        Admin, Backend, BackendInfo, FailoverLoss, HeartbeatInterval, Lifetime, Promises, Session,
        TokenStrength,
    },
    support::lock,
};

use crate::{
    FileConfig,
    disk::{ANSWER_MAX, Disk},
    folder::Folder,
    keys,
    session::FileSession,
};

/// The URL scheme.
pub const SCHEME: &str = "file";

/// Time between two checks of the folder and of the files of all holds.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// The backend for lock files in one folder.
#[derive(Clone, Debug)]
pub struct FileBackend {
    pub(crate) folder: Arc<Folder>,
    pub(crate) disk: Disk,
    sessions: Arc<Mutex<Vec<Weak<FileSession>>>>,
}

impl FileBackend {
    /// Creates a backend from a configuration. No I/O.
    pub fn new(config: FileConfig) -> Self {
        Self { folder: Arc::new(Folder::new(config.folder())), disk: Disk::new(), sessions: Arc::default() }
    }

    /// Returns another handle of the locked file of a lock; `None` if no client of this backend holds the lock now.
    ///
    /// A child process that inherits the handle keeps the lock when this process is killed, until it closes the handle
    /// or exits, because the lock belongs to the open file. A release still frees the lock at once, despite other
    /// handles.
    ///
    /// # Errors
    ///
    /// If this process cannot open another file.
    pub fn locked_file(&self, name: &LockName) -> io::Result<Option<File>> {
        let path = self.folder.join(keys::lock_file(name));
        self.sessions()
            .iter()
            .filter_map(Weak::upgrade)
            .find_map(|session| session.locked_file(&path))
            .transpose()
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Weak<FileSession>>> {
        lock(&self.sessions)
    }
}

#[async_trait]
impl Backend for FileBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new(SCHEME, Lifetime::Process);
        info.heartbeat = HeartbeatInterval::Every(HEARTBEAT);
        info.powers.elections = true;
        info.powers.records = true;
        info.powers.list = true;
        info
    }

    fn promises(&self) -> Promises {
        Promises::least().with_token(TokenStrength::ClockFloor).with_failover(FailoverLoss::NoFailover)
    }

    async fn open_session(&self, _ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let folder = Arc::clone(&self.folder);
        self.disk.read("open lock folder", ANSWER_MAX, move || folder.open()).await?;
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

#[cfg(test)]
mod tests {
    use lockkit_core::{
        Metadata,
        backend::{Acquired, Claim, ClaimControl},
    };

    use super::*;

    #[tokio::test]
    async fn locked_files_of_all_sessions_are_found_and_ended_sessions_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let backend = FileBackend::new(FileConfig::new(folder.path()).unwrap());
        let open = || backend.open_session(Duration::MAX, Clock::boot());
        let sessions = [open().await.unwrap(), open().await.unwrap()];
        let [one, other, free] = ["a", "b", "c"].map(|name| LockName::new(name).unwrap());
        for (session, name) in sessions.iter().zip([&one, &other]) {
            let metadata = Metadata::of_this_process(None);
            let claim = Claim::new(name.clone(), false, metadata, &ClaimControl::new());
            assert!(matches!(session.acquire(claim).await.unwrap(), Acquired::Granted(_)));
        }
        for (name, is_found) in [(one, true), (other, true), (free, false)] {
            assert_eq!(backend.locked_file(&name).unwrap().is_some(), is_found, "{name}");
        }
        drop(sessions);
        let _last = open().await.unwrap();
        assert_eq!(backend.sessions().len(), 1);
    }
}
