//! One client's locks, as a [`Session`].
//!
//! Failure cases:
//!
//! * **The claim gives up during a file operation.** The operation completes on its own thread. A lock that it takes
//!   then is returned as granted and released by the caller, or freed when the result is dropped.
//! * **This process is killed.** The operating system frees the lock. The token was on the disk before the grant, so
//!   the next token is higher.
//! * **A crash while a lock file is made.** A file gets its name only when it is complete. A file `.new-*` is left,
//!   which can be deleted.
//! * **A foreign file** is linked or moved into the folder under the name of a lock file. Only files with a record of
//!   this library are written, so its content survives.
//! * **Files are deleted or replaced.** The lock on such a file excludes nobody. Before a grant, the file is opened
//!   again. After it, a heartbeat notices, and the hold is lost. A deleted folder ends the session; the next one
//!   creates it again.
//! * **The disk hangs.** A heartbeat returns `Unknown` after [`HEARTBEAT`](crate::HEARTBEAT), which ends nothing:
//!   nobody else can lock the file as long as this process has it locked. At most one hanging read per client is under
//!   way, and waiters poll without the disk.

use std::{
    collections::HashMap,
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Error, ErrorKind, Result,
    backend::{Acquired, Claim, ClaimId, Grant, Loss, Renewals, Session},
};
use tokio_util::sync::CancellationToken;

use crate::{
    disk::Disk,
    folder::Folder,
    holder::Announcement,
    local_queue::{LocalQueues, Turn},
    lock_file::LockFile,
};

pub(crate) const ACQUIRE: &str = "acquire";

/// One client's locks.
#[derive(Debug)]
pub(crate) struct FileSession {
    pub(crate) folder: Arc<Folder>,
    pub(crate) disk: Disk,
    pub(crate) clock: Clock,
    pub(crate) queues: LocalQueues,
    holds: Mutex<HashMap<ClaimId, Hold>>,
    pub(crate) closed: CancellationToken,
}

/// A hold. Dropping it frees, in this order: the announcement, the lock, the turn of the next local waiter.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) _announcement: Option<Announcement>,
    pub(crate) lock: LockFile,
    pub(crate) _turn: Option<Turn>,
}

impl FileSession {
    pub(crate) fn new(folder: Arc<Folder>, disk: Disk, clock: Clock) -> Self {
        Self {
            folder,
            disk,
            clock,
            queues: LocalQueues::default(),
            holds: Mutex::default(),
            closed: CancellationToken::new(),
        }
    }

    pub(crate) fn holds(&self) -> MutexGuard<'_, HashMap<ClaimId, Hold>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns another handle of the lock file at `path`, if this session holds that lock.
    pub(crate) fn locked_file(&self, path: &Path) -> Option<io::Result<File>> {
        self.holds().values().find_map(|hold| hold.lock.another_handle(path))
    }
}

#[async_trait]
impl Session for FileSession {
    fn ttl(&self) -> Duration {
        Duration::MAX
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        self.acquire_claim(&claim).await
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        self.heartbeat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        let hold = self.holds().remove(&grant.claim());
        // Synchronous, because unlocking touches no disk: it also works while the runtime shuts down.
        drop(hold);
        Ok(())
    }

    async fn lost(&self) -> Loss {
        // Nothing reports a deleted file; heartbeats find it.
        self.closed.cancelled().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        let holds = std::mem::take(&mut *self.holds());
        drop(holds);
        Ok(())
    }
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, ACQUIRE)
}

#[cfg(test)]
mod tests;
