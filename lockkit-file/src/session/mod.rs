//! One client's locks, as a [`Session`].
//!
//! Failure cases:
//!
//! * **The claim gives up during a file operation.** The operation completes on its own thread. A lock that it takes
//!   then is returned as granted and released by the caller, or freed when the result is dropped.
//! * **This process is killed.** The operating system frees the lock. The token was on the disk before the grant, so
//!   the next token is higher.
//! * **A crash while a file is made.** A file gets its name only when it is complete. A file `.new-*` is left,
//!   which can be deleted.
//! * **A foreign file** is linked or moved into the folder under the name of a lock file. Only files with a record of
//!   this library are written, so its content survives.
//! * **Files are deleted or replaced.** The lock on such a file excludes nobody. Before a grant, the file is opened
//!   again. After it, a heartbeat notices, and the hold is lost. A deleted folder ends the session; the next one
//!   creates it again.
//! * **The disk hangs.** A heartbeat returns `Unknown` after [`HEARTBEAT`](crate::HEARTBEAT), which ends nothing:
//!   nobody else can lock the file as long as this process has it locked. At most one hanging read per client is under
//!   way, and waiters poll without the disk. A release waits for a change of the held files that hangs (`hold.rs`).

mod acquire;
mod heartbeat;
mod hold;
mod local_queue;
mod powers;

use std::{
    collections::HashMap,
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Error, ErrorKind, Result,
    backend::{Acquired, Claim, ClaimId, Elections, Grant, Loss, Records, Renewals, Session},
    support::lock,
};
use tokio_util::sync::CancellationToken;

pub use self::{
    acquire::{POLL_PAUSE_MAX, POLL_PAUSE_MIN},
    local_queue::STREAK_MAX,
    powers::LEADER_POLL_PAUSE,
};
use self::{hold::Hold, local_queue::LocalQueues};
use crate::{
    disk::{ANSWER_MAX, Disk},
    folder::Folder,
};

pub(crate) const ACQUIRE: &str = "acquire";

/// One client's locks.
#[derive(Debug)]
pub(crate) struct FileSession {
    folder: Arc<Folder>,
    disk: Disk,
    clock: Clock,
    queues: LocalQueues,
    holds: Mutex<HashMap<ClaimId, Hold>>,
    closed: CancellationToken,
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

    fn holds(&self) -> MutexGuard<'_, HashMap<ClaimId, Hold>> {
        lock(&self.holds)
    }

    /// Returns another handle of the lock file at `path`, if this session holds that lock.
    pub(crate) fn locked_file(&self, path: &Path) -> Option<io::Result<File>> {
        self.holds().values().find_map(|hold| hold.lock().another_handle(path))
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
        let held = self.holds().get(&grant.claim()).map(|hold| Arc::clone(hold.files()));
        let Some(files) = held else { return Ok(()) };
        // Synchronous unless the hold is being changed, because unlocking touches no disk: it also works while the
        // runtime shuts down.
        files.free("release", ANSWER_MAX).await.map_err(|error| error.with_lock(grant.name()))?;
        let turn = self.holds().remove(&grant.claim());
        drop(turn);
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
        let mut closed = Ok(());
        for (claim, hold) in holds {
            // All changes together get the time of one.
            let limit = if closed.is_ok() { ANSWER_MAX } else { Duration::ZERO };
            if let Err(error) = hold.files().free("close", limit).await {
                // A change does not end: its lock is freed when it ends, all others when this returns. It is kept, so
                // that the next close does not confirm what has not happened.
                self.holds().insert(claim, hold);
                closed = closed.and(Err(error));
            }
        }
        closed
    }

    fn elections(&self) -> Option<&dyn Elections> {
        Some(self)
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, ACQUIRE)
}

#[cfg(test)]
mod tests;
