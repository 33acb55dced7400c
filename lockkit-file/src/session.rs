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
//! * **A disk that hangs.** A beat is answered `Unknown` after [`BEAT`], which ends nothing: as long as this process has the
//!   file locked nobody else is granted the lock. The look that hangs is the only one of its client, and waiters poll
//!   without the disk.

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
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::BEAT,
    disk::Disk,
    folder::Folder,
    holder::Announcement,
    keys,
    lock_file::{Attempt, LockFile},
    open_file::{OpenFile, Place},
    turns::{Turn, Turns},
};

/// First pause between two tries at a lock that another process holds; grows by half with each, up to
/// [`POLL_PAUSE_MAX`]. Up to the same again is added at random.
pub const POLL_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause between two tries, before jitter: a lock that becomes free is noticed within twice this time.
pub const POLL_PAUSE_MAX: Duration = Duration::from_millis(25);

/// Pause in which another process that polls is sure to come by: the longest poll with its jitter, and some.
const YIELD: Duration = POLL_PAUSE_MAX.saturating_mul(2).saturating_add(POLL_PAUSE_MIN);

/// Pause between two looks of a waiter at whether the file that it has open is still the one of its name.
const LOOK_PAUSE: Duration = BEAT;

const ACQUIRE: &str = "acquire";

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
    disk: Disk,
    clock: Clock,
    turns: Turns,
    holds: Mutex<HashMap<ClaimId, Hold>>,
    closed: CancellationToken,
}

/// A lock that is held. Its end frees, in this order: the announcement, the lock, the turn of the next local waiter.
#[derive(Debug)]
struct Hold {
    _announcement: Option<Announcement>,
    lock: LockFile,
    _turn: Option<Turn>,
}

/// What came of an attempt at a lock.
#[derive(Debug)]
enum Tried {
    Granted(Grant, Hold),
    /// Another client holds it. The file stays open.
    Busy(OpenFile),
}

/// What ends a wait for something else.
type Over = Result<Acquired>;

impl FileSession {
    pub(crate) fn new(folder: Arc<Folder>, disk: Disk, clock: Clock) -> Self {
        Self {
            folder,
            disk,
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

    /// Asks the operating system once. `locked` is the lock's file, where a poll has locked it.
    async fn attempt(&self, claim: &Claim, locked: Option<LockFile>) -> std::result::Result<Tried, Over> {
        let armed_at = self.clock.now();
        let change = select! {
            biased;
            () = claim.give_up() => return Err(Ok(Acquired::GaveUp)),
            () = self.closed.cancelled() => return Err(Err(closed())),
            change = self.disk.change(ACQUIRE) => change.map_err(Err)?,
        };
        let (folder, asked) = (Arc::clone(&self.folder), claim.clone());
        let tried = change.run(ACQUIRE, move || {
            let path = folder.join(keys::lock_file(asked.name()));
            let (lock, token) = match LockFile::take(&folder, &path, locked)? {
                Attempt::Locked(lock, token) => (lock, token),
                Attempt::Busy(file) => return Ok(Tried::Busy(file)),
            };
            let path = folder.join(keys::holder_file(asked.name()));
            let announcement = Announcement::make(&folder, path, token, asked.metadata());
            let hold = Hold { _announcement: announcement, lock, _turn: None };
            Ok(Tried::Granted(Grant::new(&asked, token, armed_at), hold))
        });
        // A claim that gives up now waits for the outcome, so that no lock is taken after it was answered.
        select! {
            biased;
            () = self.closed.cancelled() => Err(Err(closed())),
            tried = tried => tried.map_err(Err),
        }
    }

    /// Waits in the local queue, then polls.
    async fn wait(&self, claim: &Claim) -> std::result::Result<(Grant, Hold), Over> {
        let queue = self.turns.queue(claim.name());
        let contended = async {
            queue.contended().await;
            claim.note_contended();
            pending().await
        };
        let turn = select! {
            biased;
            never = contended => never,
            () = claim.give_up() => return Err(Ok(Acquired::GaveUp)),
            () = self.closed.cancelled() => return Err(Err(closed())),
            turn = queue.turn() => turn,
        };
        if queue.end_streak() {
            self.rest(claim, YIELD).await?;
        }
        let mut pauses = POLL.build();
        let mut tried = self.attempt(claim, None).await?;
        loop {
            queue.note_contended();
            let busy = match tried {
                Tried::Granted(grant, hold) => return Ok((grant, Hold { _turn: Some(turn), ..hold })),
                Tried::Busy(file) => file,
            };
            claim.note_contended();
            let locked = self.poll(claim, busy, &mut pauses).await?;
            // It came from elsewhere.
            queue.begin_streak();
            tried = self.attempt(claim, locked).await?;
        }
    }

    /// Polls an open file until it is free: the file, locked. `None` when it is no longer the one of its name.
    async fn poll(
        &self,
        claim: &Claim,
        mut file: OpenFile,
        pauses: &mut impl Iterator<Item = Duration>,
    ) -> std::result::Result<Option<LockFile>, Over> {
        let mut next_look = Instant::now() + LOOK_PAUSE;
        loop {
            self.rest(claim, pauses.next().unwrap_or(POLL_PAUSE_MAX)).await?;
            file = match file.try_lock().map_err(Err)? {
                Ok(locked) => return Ok(Some(locked)),
                Err(busy) => busy,
            };
            if Instant::now() < next_look {
                continue;
            }
            // A file without a name stays locked as long as its holder lives, while others lock the next one.
            let place = Arc::clone(file.place());
            let in_place = select! {
                biased;
                () = claim.give_up() => return Err(Ok(Acquired::GaveUp)),
                () = self.closed.cancelled() => return Err(Err(closed())),
                in_place = self.disk.look("wait", BEAT, move || place.is_in_place()) => in_place,
            };
            match in_place {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    tracing::debug!(lock = ?claim.name(), %error, "the lock file was not looked at")
                }
            }
            next_look = Instant::now() + LOOK_PAUSE;
        }
    }

    /// Pauses, unless the wait is over before the pause is.
    async fn rest(&self, claim: &Claim, pause: Duration) -> std::result::Result<(), Over> {
        select! {
            biased;
            () = claim.give_up() => Err(Ok(Acquired::GaveUp)),
            () = self.closed.cancelled() => Err(Err(closed())),
            () = sleep(pause) => Ok(()),
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
        let places: Vec<Option<Arc<Place>>> = {
            let holds = self.holds();
            let place = |grant: &Grant| holds.get(&grant.claim()).map(|hold| Arc::clone(hold.lock.place()));
            held.iter().map(place).collect()
        };
        let folder = Arc::clone(&self.folder);
        let look = move || {
            let in_place =
                places.iter().map(|place| place.as_ref().map_or(Ok(false), |place| place.is_in_place()));
            Ok((folder.is_there()?, in_place.collect()))
        };
        self.disk.look("renew", BEAT, look).await
    }
}

#[async_trait]
impl Session for FileSession {
    fn ttl(&self) -> Duration {
        Duration::MAX
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        let acquired = if claim.wait() {
            self.wait(&claim).await
        } else {
            // Past the local queue: those in it wait for others, and only the file knows whether it is free.
            self.attempt(&claim, None).await.and_then(|tried| match tried {
                Tried::Granted(grant, hold) => Ok((grant, hold)),
                Tried::Busy(_) => {
                    claim.note_contended();
                    Err(Ok(Acquired::GaveUp))
                }
            })
        };
        let answer = match acquired {
            Ok((grant, hold)) => self.keep(grant, hold),
            Err(over) => over,
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
    Error::new(ErrorKind::Closed, ACQUIRE)
}

#[cfg(test)]
mod tests;
