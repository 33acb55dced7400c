//! File operations on a bounded number of threads that may block. A disk that hangs keeps the thread of every operation
//! that waits for it, even if nobody waits for the operation any more.

use std::{sync::Arc, time::Duration};

use lockkit_core::{Error, ErrorKind, Result};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::timeout,
};

/// Maximum number of concurrent operations of one [`FileBackend`](crate::FileBackend) that create, lock or write files.
/// Each takes a thread. One more thread serves reads, which run one at a time.
pub const CHANGES_MAX: usize = 16;

/// Longest time that opening a client, or an inspection, waits for the disk.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The permits of a client for operations on the disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    reads: Arc<Semaphore>,
    changes: Arc<Semaphore>,
}

/// The permit to run one operation that changes files.
#[derive(Debug)]
pub(crate) struct Change(OwnedSemaphorePermit);

impl Disk {
    pub(crate) fn new() -> Self {
        Self { reads: Arc::new(Semaphore::new(1)), changes: Arc::new(Semaphore::new(CHANGES_MAX)) }
    }

    /// Runs an operation that only reads. Reads run one at a time. Fails if the read does not complete within `limit`;
    /// it still runs to its end, and the next read waits for it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future discards the result; a read that has started runs to its end.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        limit: Duration,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let answer = async { blocking(operation, permit(&self.reads, operation).await?, work).await };
        match timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, operation)
                .with_message("the file system does not respond")),
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

#[cfg(test)]
impl Disk {
    /// Takes the permit of the reads, as a read that hangs has it.
    pub(crate) fn hang(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.reads).try_acquire_owned().expect("nothing is read")
    }
}

impl Change {
    /// Runs the operation. It runs to its end even if the future is dropped; then its result is dropped, which frees a
    /// lock that it took.
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

/// Runs an operation on a thread that may block. The operation keeps its permit until it ends.
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

    /// Returns an operation that hangs until the sender is dropped.
    fn hanging() -> (mpsc::Sender<()>, impl Fn() -> Result<()> + Clone + Send + 'static) {
        let (back, hangs) = mpsc::channel();
        let hangs = Arc::new(Mutex::new(hangs));
        (back, move || {
            assert!(hangs.lock().unwrap().recv().is_err(), "nothing is ever sent");
            Ok(())
        })
    }

    #[tokio::test]
    async fn hanging_read_prevents_a_second_one() {
        let disk = Disk::new();
        let (disk_is_back, hang) = hanging();
        let limit = Duration::from_millis(50);
        let answer = timeout(ANSWER_MAX, disk.read("read", limit, hang)).await.expect("the limit is shorter");
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
        for _ in 0..3 {
            let second = disk.read("read", limit, || Ok("two reads at once")).await;
            assert_eq!(second.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        drop(disk_is_back);
        assert_eq!(disk.read("read", ANSWER_MAX, || Ok(1)).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn operation_that_panics_is_unexpected_and_leaves_its_thread() {
        let disk = Disk::new();
        let defect = disk.read("read", ANSWER_MAX, || -> Result<()> { panic!("a defect") }).await;
        assert_eq!(defect.unwrap_err().kind(), ErrorKind::Unexpected);
        assert_eq!(disk.read("read", ANSWER_MAX, || Ok(1)).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn hanging_changes_are_limited_and_do_not_block_reads() {
        let disk = Disk::new();
        let (disk_is_back, hang) = hanging();
        let mut changes = Vec::new();
        for _ in 0..CHANGES_MAX {
            let change = disk.change("change").await.unwrap();
            changes.push(tokio::spawn(change.run("change", hang.clone())));
        }
        let next = timeout(Duration::from_millis(50), disk.change("change")).await;
        assert!(next.is_err(), "one more thread");
        assert_eq!(disk.read("read", ANSWER_MAX, || Ok(1)).await.unwrap(), 1);
        drop(disk_is_back);
        for change in changes {
            change.await.unwrap().unwrap();
        }
        disk.change("change").await.unwrap();
    }
}
