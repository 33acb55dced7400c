//! The table of the watches that should exist, besides that of the client's own keys.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use lockkit_core::support::lock;
use tokio::sync::Notify;

use super::{FROM_NOW_ON, OWN_KEYS, WatchId, requests::Cancel};
use crate::{
    client::{WatchFilterType, WatchOptions},
    keys::QueuePath,
    session::entry::QueueEntry,
    wire::Revision,
};

/// The watches on predecessors and queues that should exist.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    table: Mutex<WatchTable>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct WatchTable {
    wanted: HashMap<WatchId, WantedWatch>,
    /// Watches that were added or removed, and that the stream's task has not applied yet; `None` without a stream.
    pending: Option<VecDeque<WatchId>>,
    last_id: WatchId,
}

impl WatchTable {
    fn changed(&mut self, id: WatchId) {
        if let Some(pending) = &mut self.pending {
            pending.push_back(id);
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct WantedWatch {
    pub(super) key: Vec<u8>,
    from: Revision,
    subscriber: Subscriber,
    pub(super) cancel: Cancel,
}

/// The receiver of a watch's notifications.
#[derive(Clone, Debug)]
pub(super) enum Subscriber {
    /// A waiter, of the deletion of one key.
    Waiter(Arc<QueueEntry>),
    /// An observer, of all changes to the keys of a queue.
    Observer(Arc<Notify>),
}

impl WantedWatch {
    pub(super) fn options(&self) -> WatchOptions {
        let options = WatchOptions::new().with_start_revision(self.from);
        match self.subscriber {
            Subscriber::Waiter(_) => options.with_filters([WatchFilterType::Noput]),
            Subscriber::Observer(_) => options.with_prefix(),
        }
    }
}

impl Watches {
    /// Watches for the deletion of a key from this revision on, until the guard is dropped. Then the watch is cancelled
    /// [`Later`](Cancel::Later), unless the key is created and deleted often.
    pub(crate) fn add(
        self: &Arc<Self>,
        key: Vec<u8>,
        from: Revision,
        waiter: &Arc<QueueEntry>,
        cancel: Cancel,
    ) -> WatchGuard {
        self.insert(WantedWatch { key, from, subscriber: Subscriber::Waiter(Arc::clone(waiter)), cancel })
    }

    /// Watches all keys of a queue until the guard is dropped. The observer is notified of every change from now on,
    /// and each time the watch begins.
    pub(crate) fn observe(self: &Arc<Self>, queue: &QueuePath, observer: &Arc<Notify>) -> WatchGuard {
        let (key, subscriber) = (queue.as_str().into(), Subscriber::Observer(Arc::clone(observer)));
        self.insert(WantedWatch { key, from: FROM_NOW_ON, subscriber, cancel: Cancel::AtOnce })
    }

    fn insert(self: &Arc<Self>, wanted: WantedWatch) -> WatchGuard {
        let mut table = self.lock();
        table.last_id = table.last_id.max(OWN_KEYS) + 1;
        let id = table.last_id;
        table.wanted.insert(id, wanted);
        table.changed(id);
        drop(table);
        self.changed.notify_one();
        WatchGuard { watches: Arc::clone(self), id }
    }

    fn remove(&self, id: WatchId) {
        let mut table = self.lock();
        table.wanted.remove(&id);
        table.changed(id);
        drop(table);
        self.changed.notify_one();
    }

    /// Waits for the next watch that the stream's task has to apply; without a `WantedWatch` nobody needs it any more.
    /// When this is dropped, no watch is lost: it takes one out only to return it.
    pub(super) async fn next(&self) -> (WatchId, Option<WantedWatch>) {
        loop {
            if let Some(next) = self.next_pending() {
                return next;
            }
            self.changed.notified().await;
        }
    }

    pub(super) fn next_pending(&self) -> Option<(WatchId, Option<WantedWatch>)> {
        let mut table = self.lock();
        let id = table.pending.as_mut()?.pop_front()?;
        Some((id, table.wanted.get(&id).cloned()))
    }

    /// Queues all watches: a new stream has none yet.
    pub(super) fn stream_began(&self) {
        let mut table = self.lock();
        table.pending = Some(table.wanted.keys().copied().collect());
    }

    pub(super) fn stream_ended(&self) {
        self.lock().pending = None;
    }

    pub(super) fn subscriber(&self, id: WatchId) -> Option<Subscriber> {
        self.lock().wanted.get(&id).map(|wanted| wanted.subscriber.clone())
    }

    fn lock(&self) -> MutexGuard<'_, WatchTable> {
        lock(&self.table)
    }
}

/// A watch on a predecessor or a queue; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct WatchGuard {
    watches: Arc<Watches>,
    id: WatchId,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.watches.remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::keys::{Layout, Names};

    /// Otherwise it would grow as long as no stream can be opened.
    #[test]
    fn nothing_is_queued_for_a_stream_that_has_ended() {
        let (watches, changes) = (Arc::<Watches>::default(), Arc::default());
        let queue = Layout::new("", Names::Raw).queue(&LockName::new("x").unwrap()).unwrap();
        let observe = || watches.observe(&queue, &changes);
        watches.stream_began();
        let kept = observe();
        watches.stream_ended();
        drop(observe());
        assert!(watches.next_pending().is_none());
        watches.stream_began();
        assert_eq!(watches.next_pending().map(|(id, wanted)| (id, wanted.is_some())), Some((kept.id, true)));
        assert!(watches.next_pending().is_none());
    }
}
