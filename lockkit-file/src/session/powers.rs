//! What a session offers besides locks: elections and records.
//!
//! Failure cases:
//!
//! * **The holder is not the holder any more.** Its session has no such hold, or the lock file has lost its name:
//!   refused. While this process has the lock file locked, nobody else holds the lock.
//! * **The hold is released during a proclaim or a write.** The release waits for its end (`hold.rs`), so that it
//!   cannot replace a file of the next holder.
//! * **An older proclaim comes late.** The announcement knows the number that it shows; a lower one writes nothing.
//! * **A crash during a write** leaves the earlier file and a file `.new-*`, which can be deleted.
//! * **The disk hangs.** The request fails after [`ANSWER_MAX`]; its file operation continues, and those of the same
//!   hold wait for it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Error, ErrorKind, LockName, Metadata, Result,
    backend::{Elections, Grant, LeaderEntry, LeaderWatch, Records},
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use super::{FileSession, hold::HoldChange};
use crate::{
    disk::ANSWER_MAX,
    folder::Folder,
    holder::Announcement,
    inspect, keys,
    record::{self, READ, WRITE},
};

/// Pause between two reads of the holder file by an observer of an election. The folder does not notify.
pub const LEADER_POLL_PAUSE: Duration = Duration::from_millis(250);

const READ_LEADER: &str = "read leader";

const PROCLAIM: &str = "proclaim";

impl FileSession {
    /// Changes files as the holder. Returns false, and changes nothing, if the grant is not held any more.
    async fn change_held(
        &self,
        operation: &'static str,
        grant: &Grant,
        work: impl FnOnce(&Folder, &mut HoldChange) -> Result<()> + Send + 'static,
    ) -> Result<bool> {
        let changing = async {
            let held = self.holds().get(&grant.claim()).map(|hold| Arc::clone(hold.files()));
            let Some(files) = held else { return Ok(false) };
            // Before the right to change the hold, so that a release never waits for another hold's disk operations.
            let permit = self.disk.change(operation).await?;
            let Some(mut change) = files.change().await else { return Ok(false) };
            let folder = Arc::clone(&self.folder);
            permit
                .run(operation, move || {
                    if !change.lock().location().is_current()? {
                        return Ok(false);
                    }
                    work(&folder, &mut change)?;
                    Ok(true)
                })
                .await
        };
        match timeout(ANSWER_MAX, changing).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, operation)
                .with_message("the file system does not respond")),
        }
        .map_err(|error| error.with_lock(grant.name()))
    }
}

#[async_trait]
impl Elections for FileSession {
    async fn leader(&self, name: &LockName) -> Result<Option<LeaderEntry>> {
        let path = self.folder.join(keys::holder_file(name));
        let leader =
            self.disk.read(READ_LEADER, ANSWER_MAX, move || inspect::leader(READ_LEADER, &path)).await;
        leader.map_err(|error| error.with_lock(name))
    }

    async fn watch(&self, _name: &LockName) -> Result<Box<dyn LeaderWatch>> {
        let mut ticks = interval_at(Instant::now() + LEADER_POLL_PAUSE, LEADER_POLL_PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Box::new(PollTicks(ticks)))
    }

    async fn proclaim(&self, grant: &Grant, metadata: &Metadata) -> Result<bool> {
        let (path, token) = (self.folder.join(keys::holder_file(grant.name())), grant.token());
        let metadata = metadata.clone();
        self.change_held(PROCLAIM, grant, move |folder, change| {
            let shown = change.announcement();
            if shown.as_ref().is_none_or(|shown| !shown.is_later_than(&metadata)) {
                // The earlier file is unlocked after the new one has its name.
                *shown = Some(Announcement::replace(folder, &path, token, &metadata)?);
            }
            Ok(())
        })
        .await
    }
}

/// Lets an observer read at each tick, whether there is a change or not: a read takes microseconds, and the ordinary
/// re-check of a session without a ttl takes seconds.
#[derive(Debug)]
struct PollTicks(Interval);

#[async_trait]
impl LeaderWatch for PollTicks {
    async fn changed(&mut self) {
        self.0.tick().await;
    }
}

#[async_trait]
impl Records for FileSession {
    async fn read(&self, name: &LockName) -> Result<Option<String>> {
        let (folder, path) = (Arc::clone(&self.folder), self.folder.join(keys::record_file(name)));
        let record = self.disk.read(READ, ANSWER_MAX, move || record::read(&folder, &path)).await;
        record.map_err(|error| error.with_lock(name))
    }

    /// Files stay, so `keep` is not needed.
    async fn write(&self, grant: &Grant, record: &str, _keep: Duration) -> Result<bool> {
        let (path, text) = (self.folder.join(keys::record_file(grant.name())), record.to_owned());
        self.change_held(WRITE, grant, move |folder, _| record::write(folder, &path, &text)).await
    }
}
