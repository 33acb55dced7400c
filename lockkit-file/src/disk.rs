//! File operations on threads that may block, a bounded number of them: a disk that hangs keeps the thread of every
//! operation that waits for it, also when nobody waits for the operation any more.

use std::{sync::Arc, time::Duration};

use lockkit_core::{Error, ErrorKind, Result};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::timeout,
};

/// Operations of one [`FileBackend`](crate::FileBackend) that make, lock or write files at the same time. Each takes a
/// thread, and so does the one look at a time that there is in addition.
pub const CHANGES_MAX: usize = 16;

/// Longest time for which opening a client or an inspection waits for the disk.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The way to the disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    looks: Arc<Semaphore>,
    changes: Arc<Semaphore>,
}

/// The right to run one operation that changes files.
#[derive(Debug)]
pub(crate) struct Change(OwnedSemaphorePermit);

impl Disk {
    pub(crate) fn new() -> Self {
        Self { looks: Arc::new(Semaphore::new(1)), changes: Arc::new(Semaphore::new(CHANGES_MAX)) }
    }

    /// Looks at files, one look after the other. An error when there is no answer within `limit`; the look runs to its
    /// end all the same, and the next one waits for that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the answer.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        operation: &'static str,
        limit: Duration,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let answer = async { blocking(operation, permit(&self.looks, operation).await?, work).await };
        match timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                Err(Error::new(ErrorKind::Unavailable, operation).with_message("the file system hangs"))
            }
        }
    }

    /// Waits until an operation that changes files may start.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn change(&self, operation: &'static str) -> Result<Change> {
        permit(&self.changes, operation).await.map(Change)
    }
}

impl Change {
    /// Runs the operation. It runs to its end also when the future is dropped; its answer is dropped then, which frees
    /// a lock that it took.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        operation: &'static str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        blocking(operation, self.0, work).await
    }
}

async fn permit(semaphore: &Arc<Semaphore>, operation: &'static str) -> Result<OwnedSemaphorePermit> {
    let permit = Arc::clone(semaphore).acquire_owned().await;
    permit.map_err(|cause| Error::new(ErrorKind::Closed, operation).with_source(cause))
}

/// Runs an operation, which keeps its permit to its end.
async fn blocking<T: Send + 'static>(
    operation: &'static str,
    permit: OwnedSemaphorePermit,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let running = spawn_blocking(move || {
        let _until_the_end = permit;
        work()
    });
    match running.await {
        Ok(answer) => answer,
        Err(cause) if cause.is_panic() => {
            Err(Error::new(ErrorKind::Unexpected, operation).with_source(cause))
        }
        Err(_) => Err(Error::new(ErrorKind::Closed, operation).with_message("the runtime has ended")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;

    /// Operations that hang until the other end is dropped.
    fn hanging() -> (mpsc::Sender<()>, impl Fn() -> Result<()> + Clone + Send + 'static) {
        let (back, hangs) = mpsc::channel();
        let hangs = Arc::new(Mutex::new(hangs));
        (back, move || {
            assert!(hangs.lock().unwrap().recv().is_err(), "nothing is ever sent");
            Ok(())
        })
    }

    #[tokio::test]
    async fn a_look_that_hangs_starts_no_second_one() {
        let disk = Disk::new();
        let (disk_is_back, hang) = hanging();
        let limit = Duration::from_millis(50);
        let answer = timeout(ANSWER_MAX, disk.look("look", limit, hang)).await.expect("the limit is shorter");
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
        for _ in 0..3 {
            let second: Result<()> = disk.look("look", limit, || panic!("two looks at once")).await;
            assert_eq!(second.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        drop(disk_is_back);
        assert_eq!(disk.look("look", ANSWER_MAX, || Ok(1)).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn changes_that_hang_are_limited_and_leave_the_looks_alone() {
        let disk = Disk::new();
        let (disk_is_back, hang) = hanging();
        let mut changes = Vec::new();
        for _ in 0..CHANGES_MAX {
            let change = disk.change("change").await.unwrap();
            changes.push(tokio::spawn(change.run("change", hang.clone())));
        }
        let next = timeout(Duration::from_millis(50), disk.change("change")).await;
        assert!(next.is_err(), "one more thread");
        assert_eq!(disk.look("look", ANSWER_MAX, || Ok(1)).await.unwrap(), 1);
        drop(disk_is_back);
        for change in changes {
            change.await.unwrap().unwrap();
        }
        disk.change("change").await.unwrap();
    }
}
