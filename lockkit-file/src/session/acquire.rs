//! A claim up to its grant: an attempt at the lock file, then the local queue and polling.

use std::{future::pending, sync::Arc, time::Duration};

use backon::{BackoffBuilder, ExponentialBuilder};
use lockkit_core::{
    Result,
    backend::{Acquired, Claim, Grant},
};
use tokio::{
    select,
    time::{Instant, sleep},
};

use super::{ACQUIRE, FileSession, closed, hold::Hold};
use crate::{
    backend::HEARTBEAT,
    holder::Announcement,
    keys,
    lock_file::{LockFile, TakeOutcome},
    open_file::OpenFile,
};

/// First pause between two attempts at a lock that another process holds. Each pause is longer by half, up to
/// [`POLL_PAUSE_MAX`]. A random time of up to the same length is added.
pub const POLL_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause between two attempts, before jitter: a waiter notices a free lock within twice this time.
pub const POLL_PAUSE_MAX: Duration = Duration::from_millis(25);

/// Pause that lets other processes poll: a little longer than the longest poll pause with its jitter.
pub(crate) const YIELD_PAUSE: Duration = POLL_PAUSE_MAX.saturating_mul(2).saturating_add(POLL_PAUSE_MIN);

/// Pause between two checks of a waiter whether its open file still has its name.
const CHECK_PAUSE: Duration = HEARTBEAT;

pub(crate) const POLL: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(POLL_PAUSE_MIN)
    .with_max_delay(POLL_PAUSE_MAX)
    .with_factor(1.5)
    .with_jitter()
    .without_max_times();

/// The outcome of one attempt at a lock.
#[derive(Debug)]
pub(crate) enum LockingOutcome {
    Granted(Grant, Hold),
    /// Another client holds it. The file stays open.
    Busy(OpenFile),
}

/// The result of an acquire that ends without a grant.
pub(crate) type NoGrant = Result<Acquired>;

impl FileSession {
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let acquired = if claim.wait() {
            self.wait(claim).await
        } else {
            // Bypasses the local queue: only the file shows whether the lock is free.
            match self.attempt(claim, None).await {
                Ok(LockingOutcome::Granted(grant, hold)) => Ok((grant, hold)),
                Ok(LockingOutcome::Busy(_)) => {
                    claim.note_contended();
                    Err(Ok(Acquired::GaveUp))
                }
                Err(end) => Err(end),
            }
        };
        let answer = match acquired {
            Ok((grant, hold)) => self.keep(grant, hold),
            Err(end) => end,
        };
        answer.map_err(|error| error.with_lock(claim.name()))
    }

    /// Tries once to take the lock. `locked` is the lock's file, if a poll has already locked it.
    pub(crate) async fn attempt(
        &self,
        claim: &Claim,
        locked: Option<LockFile>,
    ) -> std::result::Result<LockingOutcome, NoGrant> {
        let armed_at = self.clock.now();
        let change = select! {
            biased;
            () = claim.give_up() => return Err(Ok(Acquired::GaveUp)),
            () = self.closed.cancelled() => return Err(Err(closed())),
            change = self.disk.change(ACQUIRE) => change.map_err(Err)?,
        };
        let (folder, asked) = (Arc::clone(&self.folder), claim.clone());
        let outcome = change.run(ACQUIRE, move || {
            let path = folder.join(keys::lock_file(asked.name()));
            let (lock, token) = match LockFile::take(&folder, &path, locked)? {
                TakeOutcome::Locked(lock, token) => (lock, token),
                TakeOutcome::Busy(file) => return Ok(LockingOutcome::Busy(file)),
            };
            let path = folder.join(keys::holder_file(asked.name()));
            let announcement = Announcement::make(&folder, &path, token, &asked)?;
            let hold = Hold::new(lock, announcement);
            Ok(LockingOutcome::Granted(Grant::new(&asked, token, armed_at), hold))
        });
        // A claim that gives up now awaits the outcome, so that no lock is taken after this call has returned.
        select! {
            biased;
            () = self.closed.cancelled() => Err(Err(closed())),
            outcome = outcome => outcome.map_err(Err),
        }
    }

    /// Waits in the local queue, then polls.
    async fn wait(&self, claim: &Claim) -> std::result::Result<(Grant, Hold), NoGrant> {
        let queue = self.queues.queue(claim.name());
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
            self.rest(claim, YIELD_PAUSE).await?;
        }
        let mut pauses = POLL.build();
        let mut outcome = self.attempt(claim, None).await?;
        loop {
            queue.note_contended();
            let busy = match outcome {
                LockingOutcome::Granted(grant, hold) => {
                    return Ok((grant, hold.with_turn(turn)));
                }
                LockingOutcome::Busy(file) => file,
            };
            claim.note_contended();
            let locked = self.poll(claim, busy, &mut pauses).await?;
            // The lock came from another client, so a new streak begins.
            queue.begin_streak();
            outcome = self.attempt(claim, locked).await?;
        }
    }

    /// Polls an open file until it can be locked. `None` if the file has lost its name.
    pub(crate) async fn poll(
        &self,
        claim: &Claim,
        mut file: OpenFile,
        pauses: &mut impl Iterator<Item = Duration>,
    ) -> std::result::Result<Option<LockFile>, NoGrant> {
        let mut next_check = Instant::now() + CHECK_PAUSE;
        loop {
            self.rest(claim, pauses.next().unwrap_or(POLL_PAUSE_MAX)).await?;
            file = match file.try_lock().map_err(Err)? {
                Ok(locked) => return Ok(Some(locked)),
                Err(busy) => busy,
            };
            if Instant::now() < next_check {
                continue;
            }
            // A file that has lost its name stays locked as long as its holder lives, while others lock the new file.
            let location = Arc::clone(file.location());
            let is_current = select! {
                biased;
                () = claim.give_up() => return Err(Ok(Acquired::GaveUp)),
                () = self.closed.cancelled() => return Err(Err(closed())),
                is_current = self.disk.read("wait", HEARTBEAT, move || location.is_current()) => is_current,
            };
            match is_current {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    tracing::debug!(lock = ?claim.name(), %error, "the lock file could not be checked")
                }
            }
            next_check = Instant::now() + CHECK_PAUSE;
        }
    }

    /// Pauses, unless the claim gives up or the session is closed.
    async fn rest(&self, claim: &Claim, pause: Duration) -> std::result::Result<(), NoGrant> {
        select! {
            biased;
            () = claim.give_up() => Err(Ok(Acquired::GaveUp)),
            () = self.closed.cancelled() => Err(Err(closed())),
            () = sleep(pause) => Ok(()),
        }
    }

    /// Registers a hold, unless the session was closed meanwhile.
    pub(crate) fn keep(&self, grant: Grant, hold: Hold) -> Result<Acquired> {
        let mut holds = self.holds();
        // Checked under the mutex: `close` cancels first and empties the map then, so it cannot miss this hold.
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        holds.insert(grant.claim(), hold);
        Ok(Acquired::Granted(grant))
    }
}
