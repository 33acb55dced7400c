//! A hold: its locked files, and the changes that only the holder may make.
//!
//! A change (a proclaim, a written record) renames files, which must not happen once another client may have the lock.
//! So the lock file stays locked until a change that has started has ended, even if nobody waits for it any more: a
//! release waits for the change, and no change starts once a release has begun.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkit_core::{Error, ErrorKind, Result};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::timeout,
};

use super::local_queue::PollingTurn;
use crate::{holder::Announcement, lock_file::LockFile};

/// A hold. Dropping it frees, in this order: the announcement, the lock, the turn of the next local waiter.
#[derive(Debug)]
pub(crate) struct Hold {
    files: Arc<HeldFiles>,
    _turn: Option<PollingTurn>,
}

/// The locked files of a hold. A change that is under way keeps them locked.
#[derive(Debug)]
pub(crate) struct HeldFiles {
    /// Locked during a change.
    announcement: Arc<Mutex<Option<Announcement>>>,
    lock: LockFile,
    /// A release has begun.
    is_ending: AtomicBool,
}

/// The right to change the files of a hold; one at a time.
#[derive(Debug)]
pub(crate) struct HoldChange {
    files: Arc<HeldFiles>,
    announcement: OwnedMutexGuard<Option<Announcement>>,
}

impl Hold {
    pub(crate) fn new(lock: LockFile, announcement: Option<Announcement>) -> Self {
        let announcement = Arc::new(Mutex::new(announcement));
        let files = HeldFiles { announcement, lock, is_ending: AtomicBool::new(false) };
        Self { files: Arc::new(files), _turn: None }
    }

    pub(crate) fn with_turn(self, turn: PollingTurn) -> Self {
        Self { _turn: Some(turn), ..self }
    }

    pub(crate) fn files(&self) -> &Arc<HeldFiles> {
        &self.files
    }

    pub(crate) fn lock(&self) -> &LockFile {
        &self.files.lock
    }
}

impl HeldFiles {
    /// Lets no further change start, waits until the present one has ended, and frees the announcement, then the lock.
    /// Does not wait without a change.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the disk does not end it within `limit`.
    pub(crate) async fn free(&self, operation: &'static str, limit: Duration) -> Result<()> {
        self.is_ending.store(true, Ordering::SeqCst);
        // Without an await where none is needed: this also works while the runtime shuts down.
        let mut announcement = match self.announcement.try_lock() {
            Ok(announcement) => announcement,
            Err(_) => timeout(limit, self.announcement.lock()).await.map_err(|_| {
                let what = "a change of the held files has not ended: the file system does not respond";
                Error::new(ErrorKind::Unavailable, operation).with_message(what)
            })?,
        };
        *announcement = None;
        // Not by the last reference: a change that waits for its turn has one.
        self.lock.unlock();
        Ok(())
    }

    /// Waits for the right to change the files; `None` if a release has begun.
    pub(crate) async fn change(self: Arc<Self>) -> Option<HoldChange> {
        let announcement = Arc::clone(&self.announcement).lock_owned().await;
        // Read under the mutex: a release that begins after this waits for it.
        if self.is_ending.load(Ordering::SeqCst) {
            return None;
        }
        Some(HoldChange { files: self, announcement })
    }
}

impl HoldChange {
    pub(crate) fn lock(&self) -> &LockFile {
        &self.files.lock
    }

    pub(crate) fn announcement(&mut self) -> &mut Option<Announcement> {
        &mut self.announcement
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{
        LockName, Metadata,
        backend::{Claim, ClaimControl},
    };

    use super::*;
    use crate::{disk::ANSWER_MAX, folder::Folder, inspect, lock_file::TakeOutcome};

    #[tokio::test]
    async fn end_of_a_hold_frees_its_announcement_whatever_still_refers_to_it() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let (file, holder) = (folder.join("a.lock".into()), folder.join("a.holder".into()));
        let TakeOutcome::Locked(lock, token) = LockFile::take(&folder, &file, None).unwrap() else {
            panic!("it is free")
        };
        let (name, metadata) = (LockName::new("a").unwrap(), Metadata::of_this_process(None));
        let claim = Claim::new(name, true, metadata, &ClaimControl::new());
        let hold = Hold::new(lock, Announcement::make(&folder, &holder, token, &claim).unwrap());
        assert!(inspect::locked("inspect", &holder).unwrap().is_some());
        hold.files().free("release", ANSWER_MAX).await.unwrap();
        assert!(inspect::locked("inspect", &holder).unwrap().is_none(), "an ended hold is shown");
        drop(hold);
    }

    #[tokio::test(start_paused = true)]
    async fn lock_stays_until_a_change_that_has_started_ends() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let file = folder.join("a.lock".into());
        let take = || LockFile::take(&folder, &file, None).unwrap();
        let TakeOutcome::Locked(lock, _) = take() else { panic!("it is free") };
        let hold = Hold::new(lock, None);
        let change = Arc::clone(hold.files()).change().await.unwrap();
        let waiting = tokio::spawn(Arc::clone(hold.files()).change());
        tokio::task::yield_now().await;

        let hangs = hold.files().free("release", ANSWER_MAX).await.unwrap_err();
        assert_eq!(hangs.kind(), ErrorKind::Unavailable);
        assert!(matches!(take(), TakeOutcome::Busy(_)), "the change could rename a file of the next holder");

        let mut release = std::pin::pin!(hold.files().free("release", ANSWER_MAX));
        assert!(timeout(Duration::from_millis(1), &mut release).await.is_err());
        drop(change);
        release.await.unwrap();
        assert!(waiting.await.unwrap().is_none(), "a change started after the release");
        assert!(matches!(take(), TakeOutcome::Locked(..)));
    }
}
