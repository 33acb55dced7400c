//! What the client sends over the stream: it opens watches, and cancels them.
//!
//! A waiter that was granted the lock no longer needs the watch of its predecessor. If that was cancelled at once, the
//! cancel would go out together with what the holder does next, and cost the server nearly as much as a release. So
//! such cancels are sent together, a little later. Until then the server keeps the watch, and may report the deletion of the
//! key; the report is ignored. (A later claim may reuse the key, so there may be several reports.)
//!
//! A watch that reports much is cancelled at once: that of an observer, and that of a lock that is one key, which each
//! handoff deletes.

use std::collections::HashMap;

use tokio::time::{Duration, Instant};

use super::{WatchId, table::WantedWatch};
use crate::{client::WatchRequestSender, error::RequestError};

/// How long a watch that is not needed any more may stay open.
const UNNEEDED_FOR: Duration = Duration::from_millis(500);

/// Maximum number of open watches that are not needed any more.
const UNNEEDED_MAX: usize = 64;

/// The sending half of a stream, and the watches that were opened on it, except that of the client's own keys.
pub(super) struct Requests {
    sender: WatchRequestSender,
    opened: HashMap<WatchId, Cancel>,
    unneeded: Vec<WatchId>,
    /// When the unneeded watches are cancelled, if there are any.
    due: Option<Instant>,
}

/// When a watch is cancelled that is not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    AtOnce,
    /// Together with others.
    Later,
}

impl Requests {
    pub(super) fn new(sender: WatchRequestSender) -> Self {
        Self { sender, opened: HashMap::new(), unneeded: Vec::new(), due: None }
    }

    /// Opens or cancels one watch, as the table demands.
    pub(super) async fn apply(
        &mut self,
        id: WatchId,
        wanted: Option<WantedWatch>,
    ) -> Result<(), RequestError> {
        let Some(wanted) = wanted else { return self.no_longer_needed(id).await };
        if self.opened.contains_key(&id) {
            return Ok(());
        }
        self.opened.insert(id, wanted.cancel);
        let options = wanted.options().with_watch_id(id);
        Ok(self.sender.watch(wanted.key, Some(options)).await?)
    }

    async fn no_longer_needed(&mut self, id: WatchId) -> Result<(), RequestError> {
        match self.opened.get(&id) {
            None => Ok(()),
            Some(Cancel::AtOnce) => self.cancel(id).await,
            Some(Cancel::Later) => {
                self.unneeded.push(id);
                self.due.get_or_insert_with(|| Instant::now() + UNNEEDED_FOR);
                if self.unneeded.len() < UNNEEDED_MAX { Ok(()) } else { self.cancel_unneeded().await }
            }
        }
    }

    /// Waits until unneeded watches have to be cancelled; if there are none, for ever.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn cancel_unneeded(&mut self) -> Result<(), RequestError> {
        self.due = None;
        for id in std::mem::take(&mut self.unneeded) {
            self.cancel(id).await?;
        }
        Ok(())
    }

    /// Cancels a watch, unless the server has done it.
    async fn cancel(&mut self, id: WatchId) -> Result<(), RequestError> {
        if self.opened.remove(&id).is_some() {
            self.sender.cancel(id).await?;
        }
        Ok(())
    }

    /// Notes that the server has cancelled a watch.
    pub(super) fn cancelled(&mut self, id: WatchId) {
        self.opened.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkit_core::LockName;
    use tokio::sync::Notify;

    use super::*;
    use crate::{
        keys::{Layout, Names},
        session::{entry::QueueEntry, watch::table::Watches},
    };

    /// The table of a session, and what is sent for it.
    struct Stream<C> {
        watches: Arc<Watches>,
        requests: Requests,
        cancelled: C,
    }

    fn stream() -> Stream<impl FnMut() -> Vec<WatchId>> {
        let (sender, cancelled) = WatchRequestSender::recorded();
        let watches = Arc::<Watches>::default();
        watches.stream_began();
        Stream { watches, requests: Requests::new(sender), cancelled }
    }

    impl<C: FnMut() -> Vec<WatchId>> Stream<C> {
        /// Opens this many watches on predecessors, and ends them.
        async fn open_and_end(&mut self, count: usize) {
            let guards: Vec<_> =
                (0..count).map(|_| self.watches.add(b"key".to_vec(), 1, &waiter(), Cancel::Later)).collect();
            self.apply().await;
            drop(guards);
            self.apply().await;
        }

        async fn apply(&mut self) {
            while let Some((id, wanted)) = self.watches.next_pending() {
                self.requests.apply(id, wanted).await.unwrap();
            }
        }
    }

    fn waiter() -> Arc<QueueEntry> {
        let queue = Layout::new("", Names::Raw).queue(&LockName::new("x").unwrap()).unwrap();
        Arc::new(QueueEntry::new(queue, "x/1".to_owned(), None))
    }

    #[tokio::test(start_paused = true)]
    async fn watches_of_waiters_are_cancelled_together_and_later() {
        let mut stream = stream();
        let ended = Instant::now();
        stream.open_and_end(2).await;
        tokio::time::advance(UNNEEDED_FOR / 2).await;
        stream.open_and_end(1).await;
        assert_eq!((stream.cancelled)(), [0; 0]);
        stream.requests.due().await;
        // From the first of them on.
        assert_eq!(ended.elapsed(), UNNEEDED_FOR);
        stream.requests.cancel_unneeded().await.unwrap();
        assert_eq!((stream.cancelled)(), [2, 3, 4]);
        assert!(stream.requests.opened.is_empty() && stream.requests.due.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn unneeded_watches_are_bounded() {
        let mut stream = stream();
        stream.open_and_end(UNNEEDED_MAX - 1).await;
        assert_eq!((stream.cancelled)(), [0; 0]);
        stream.open_and_end(1).await;
        assert_eq!((stream.cancelled)().len(), UNNEEDED_MAX);
        assert!(stream.requests.due.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_reports_much_is_cancelled_at_once() {
        let mut stream = stream();
        let observing = stream.watches.observe(&waiter().queue, &Arc::<Notify>::default());
        let of_a_lock = stream.watches.add(b"lock".to_vec(), 1, &waiter(), Cancel::AtOnce);
        stream.apply().await;
        drop(observing);
        stream.apply().await;
        assert_eq!((stream.cancelled)(), [2]);
        drop(of_a_lock);
        stream.apply().await;
        assert_eq!((stream.cancelled)(), [3]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_has_cancelled_is_not_cancelled_again() {
        let mut stream = stream();
        stream.open_and_end(2).await;
        stream.requests.cancelled(2);
        stream.requests.cancel_unneeded().await.unwrap();
        assert_eq!((stream.cancelled)(), [3]);
    }
}
