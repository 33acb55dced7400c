//! One client's locks.
//!
//! # What can go wrong, and what is done
//!
//! * **Cancelled here.** A file operation runs to its end on its own thread. A lock that it takes after its caller
//!   gave up is answered as granted and released by the caller, or freed when the answer is dropped.
//! * **Killed here.** The operating system frees the lock with the process. The token was on the disk before the
//!   grant, so the next one is higher.
//! * **Crash while a lock file is made.** It gets its name once it is finished. A file `.new-*` stays, which can be
//!   deleted.
//! * **A foreign file** is linked or moved into the folder under the name of a lock file. Only files with a record of this
//!   library are written, so its content survives.
//! * **Files gone there.** A file that was deleted or replaced locks nobody out: it is opened again when that happens
//!   before the grant, and the hold is over when a beat finds it. A deleted folder ends the session; the next one
//!   makes it again.
//! * **Stuck disk.** A beat is answered `Unknown` after [`BEAT`], which ends nothing: as long as this process has the
//!   file locked nobody else is granted the lock.

use std::{
    collections::HashMap,
    fs::File,
    future::pending,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use lockkit_core::{
    Clock, Error, ErrorKind, Result,
    backend::{Acquired, Beat, Claim, ClaimId, Grant, Loss, Renewal, Session},
};
use tokio::{
    select,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::BEAT,
    blocking::blocking,
    folder::Folder,
    holder::Announcement,
    keys,
    lock_file::LockFile,
    turns::{Turn, Turns},
};

/// First pause between two tries at a lock that another process holds; grows by half with each, up to
/// [`POLL_PAUSE_MAX`]. Up to the same again is added at random.
pub const POLL_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause between two tries, before jitter: a lock that becomes free is noticed within twice this time.
pub const POLL_PAUSE_MAX: Duration = Duration::from_millis(25);

/// Pause in which another process that polls is sure to come by: the longest poll with its jitter, and some.
const YIELD: Duration = POLL_PAUSE_MAX.saturating_mul(2).saturating_add(POLL_PAUSE_MIN);

const POLL: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(POLL_PAUSE_MIN)
    .with_max_delay(POLL_PAUSE_MAX)
    .with_factor(1.5)
    .with_jitter()
    .without_max_times();

/// One client's locks.
#[derive(Debug)]
pub(crate) struct FileSession {
    folder: Arc<Folder>,
    clock: Clock,
    turns: Turns,
    holds: Mutex<HashMap<ClaimId, Hold>>,
    closed: CancellationToken,
}

/// A lock that is held. Its end frees, in this order: the announcement, the lock, the turn of the next local waiter.
#[derive(Debug)]
struct Hold {
    announcement: Option<Announcement>,
    lock: Arc<LockFile>,
    turn: Option<Turn>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.announcement = None;
        // Not by its own drop: a beat may look at the file at this moment and keep it open.
        self.lock.unlock();
        self.turn = None;
    }
}

impl FileSession {
    pub(crate) fn new(folder: Arc<Folder>, clock: Clock) -> Self {
        Self {
            folder,
            clock,
            turns: Turns::default(),
            holds: Mutex::default(),
            closed: CancellationToken::new(),
        }
    }

    fn holds(&self) -> MutexGuard<'_, HashMap<ClaimId, Hold>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another handle of the lock file at `path`, when it is held here.
    pub(crate) fn locked_file(&self, path: &Path) -> Option<io::Result<File>> {
        self.holds().values().find_map(|hold| hold.lock.another_handle(path))
    }

    /// Asks the operating system once.
    async fn attempt(&self, claim: &Claim) -> Result<Option<(Grant, Hold)>> {
        let armed_at = self.clock.now();
        let (folder, asked) = (Arc::clone(&self.folder), claim.clone());
        blocking("acquire", move || {
            let lock_path = folder.join(keys::lock_file(asked.name()));
            let Some((lock, token)) = LockFile::try_lock(&folder, &lock_path)? else { return Ok(None) };
            let path = folder.join(keys::holder_file(asked.name()));
            let announcement = Announcement::make(&folder, path, token, asked.metadata());
            let hold = Hold { announcement, lock: Arc::new(lock), turn: None };
            Ok(Some((Grant::new(&asked, token, armed_at), hold)))
        })
        .await
    }

    /// Waits in the local queue, then polls.
    async fn wait(&self, claim: &Claim) -> Result<Acquired> {
        let queue = self.turns.queue(claim.name());
        let contended = async {
            queue.contended().await;
            claim.note_contended();
            pending().await
        };
        let turn = select! {
            biased;
            never = contended => never,
            () = claim.give_up() => return Ok(Acquired::GaveUp),
            () = self.closed.cancelled() => return Err(closed()),
            turn = queue.turn() => turn,
        };
        if queue.end_streak()
            && let Some(over) = self.rest(claim, YIELD).await
        {
            return over;
        }
        let mut pauses = POLL.build();
        let mut was_busy = false;
        loop {
            let granted = self.attempt(claim).await?;
            queue.note_contended();
            if let Some((grant, mut hold)) = granted {
                if was_busy {
                    queue.begin_streak();
                }
                hold.turn = Some(turn);
                return self.keep(grant, hold);
            }
            was_busy = true;
            claim.note_contended();
            if let Some(over) = self.rest(claim, pauses.next().unwrap_or(POLL_PAUSE_MAX)).await {
                return over;
            }
        }
    }

    /// Pauses; the answer, when the wait is over before the pause is.
    async fn rest(&self, claim: &Claim, pause: Duration) -> Option<Result<Acquired>> {
        select! {
            biased;
            () = claim.give_up() => Some(Ok(Acquired::GaveUp)),
            () = self.closed.cancelled() => Some(Err(closed())),
            () = sleep(pause) => None,
        }
    }

    /// Enters a hold, unless the session was closed meanwhile.
    fn keep(&self, grant: Grant, hold: Hold) -> Result<Acquired> {
        let mut holds = self.holds();
        // Under the mutex: `close` takes the holds out after it has cancelled.
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        holds.insert(grant.claim(), hold);
        Ok(Acquired::Granted(grant))
    }

    /// One answer for the folder, one for each hold.
    async fn look(&self, held: &[Grant]) -> Result<(bool, Vec<Result<bool>>)> {
        let locks: Vec<Option<Arc<LockFile>>> = {
            let holds = self.holds();
            held.iter().map(|grant| holds.get(&grant.claim()).map(|hold| Arc::clone(&hold.lock))).collect()
        };
        let folder = Arc::clone(&self.folder);
        let looking = blocking("renew", move || {
            let in_place =
                locks.iter().map(|lock| lock.as_ref().map_or(Ok(false), |lock| lock.is_in_place()));
            Ok((folder.is_there()?, in_place.collect()))
        });
        match timeout(BEAT, looking).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "renew").with_message("the file system hangs")),
        }
    }
}

#[async_trait]
impl Session for FileSession {
    fn ttl(&self) -> Duration {
        Duration::MAX
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        let answer = if claim.wait() {
            self.wait(&claim).await
        } else {
            // Past the local queue: those in it wait for others, and only the file knows whether it is free.
            match self.attempt(&claim).await {
                Ok(Some((grant, hold))) => self.keep(grant, hold),
                Ok(None) => {
                    claim.note_contended();
                    Ok(Acquired::GaveUp)
                }
                Err(error) => Err(error),
            }
        };
        answer.map_err(|error| error.with_lock(claim.name()))
    }

    async fn renew(&self, held: &[Grant]) -> Beat {
        let armed_at = self.clock.now();
        let renewal = |in_place| if in_place { Renewal::Renewed { armed_at } } else { Renewal::Gone };
        match self.look(held).await {
            _ if self.closed.is_cancelled() => {
                Beat::new(Renewal::Gone, held.iter().map(|grant| (grant.claim(), Renewal::Gone)).collect())
            }
            Ok((folder, holds)) => Beat::new(
                renewal(folder),
                held.iter()
                    .zip(holds)
                    .map(|(grant, in_place)| (grant.claim(), in_place.map_or_else(Renewal::Unknown, renewal)))
                    .collect(),
            ),
            Err(error) => Beat::new(
                Renewal::Unknown(error.clone()),
                held.iter().map(|grant| (grant.claim(), Renewal::Unknown(error.clone()))).collect(),
            ),
        }
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        let hold = self.holds().remove(&grant.claim());
        // Unlocking touches no disk: it is done here and now, also by a runtime that is about to end.
        drop(hold);
        Ok(())
    }

    async fn lost(&self) -> Loss {
        // Nobody tells a deleted file; the beat finds it.
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

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "acquire")
}
