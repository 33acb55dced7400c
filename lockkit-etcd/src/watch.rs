//! The one watch stream of a session: it watches the client's own keys, the predecessors of its waiting claims, and the
//! queues whose leaders it observes.
//!
//! Failure cases:
//!
//! * The stream breaks (server restart, connection reset, leader lost). It does not recover by itself. A new one is
//!   opened, with growing pauses, and every watch resumes behind the last event that it has seen.
//! * The history that a watch needs was compacted. The client's own keys are read instead; of several handoffs only the
//!   last one is left then. The waiter behind a compacted predecessor watch reads its queue. Re-checks find lost
//!   handoffs. A compacted watch of a queue ends the stream, because its id stays in use there.
//! * A queue changes while it is not watched. Each time the server confirms the watch, its observer is notified. So that
//!   watch always starts with the present, and misses nothing.
//! * The login expires. Open watches continue, new ones are refused. The stream is closed, and the next one is opened
//!   with a new login.
//! * The server stays silent. HTTP/2 pings end the connection; until then waiters depend on their re-checks.
//!
//! A table lists the watches that should exist. The task that owns the stream applies the changes of that table one by
//! one, so a claim adds and removes its watch without waiting for the server.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use lockkit_core::{
    ErrorKind,
    backend::retry_pauses,
    limits::RETRY_PAUSE_MAX,
    support::{SessionState, lock},
};
use tokio::{sync::Notify, time::Instant};
use tracing::debug;

use crate::{
    broken::BrokenHolds,
    call::{Server, bounded},
    client::{
        Client, Event, EventType, GetOptions, KeyValue, WatchFilterType, WatchOptions, WatchRequestSender,
        WatchResponse, WatchStream,
    },
    entry::QueueEntry,
    error::{Effect, RequestError},
    handoff::Handoff,
    keys::{ClientKeys, Queue},
    login::LoginNumber,
    registry::ClaimRegistry,
    wire::{Revision, revision_of},
};

/// The watch of the client's own keys; the ids of other watches are greater.
const OWN_KEYS: WatchId = 1;

type WatchId = i64;

/// Start revision of a watch of future events only. The server serves watches that start in the past only every 100 ms.
const FROM_NOW_ON: Revision = 0;

/// The watches on predecessors and queues that should exist.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    table: Mutex<Table>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    wanted: HashMap<WatchId, WantedWatch>,
    /// Watches that were added or removed, and that the stream's task has not applied yet; `None` without a stream.
    pending: Option<VecDeque<WatchId>>,
    last_id: WatchId,
}

impl Table {
    fn changed(&mut self, id: WatchId) {
        if let Some(pending) = &mut self.pending {
            pending.push_back(id);
        }
    }
}

#[derive(Clone, Debug)]
struct WantedWatch {
    key: Vec<u8>,
    from: Revision,
    subscriber: Subscriber,
}

/// Who is notified by a watch.
#[derive(Clone, Debug)]
enum Subscriber {
    /// A waiter, of the deletion of its predecessor's key.
    Waiter(Arc<QueueEntry>),
    /// An observer, of all changes to the keys of a queue.
    Observer(Arc<Notify>),
}

impl WantedWatch {
    fn options(&self) -> WatchOptions {
        let options = WatchOptions::new().with_start_revision(self.from);
        match self.subscriber {
            Subscriber::Waiter(_) => options.with_filters([WatchFilterType::Noput]),
            Subscriber::Observer(_) => options.with_prefix(),
        }
    }
}

impl Watches {
    /// Watches for the deletion of a predecessor's key from this revision on, until the guard is dropped.
    pub(crate) fn add(
        self: &Arc<Self>,
        key: Vec<u8>,
        from: Revision,
        waiter: &Arc<QueueEntry>,
    ) -> WatchGuard {
        self.insert(WantedWatch { key, from, subscriber: Subscriber::Waiter(Arc::clone(waiter)) })
    }

    /// Watches all keys of a queue until the guard is dropped. The observer is notified of every change from now on,
    /// and each time the watch begins.
    pub(crate) fn observe(self: &Arc<Self>, queue: &Queue, observer: &Arc<Notify>) -> WatchGuard {
        let (key, subscriber) = (queue.as_str().into(), Subscriber::Observer(Arc::clone(observer)));
        self.insert(WantedWatch { key, from: FROM_NOW_ON, subscriber })
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

    /// Returns the next watch that the stream's task has to apply; without a `WantedWatch` it is to be cancelled.
    fn next_pending(&self) -> Option<(WatchId, Option<WantedWatch>)> {
        let mut table = self.lock();
        let id = table.pending.as_mut()?.pop_front()?;
        Some((id, table.wanted.get(&id).cloned()))
    }

    /// Queues all watches: a new stream has none yet.
    fn stream_began(&self) {
        let mut table = self.lock();
        table.pending = Some(table.wanted.keys().copied().collect());
    }

    fn stream_ended(&self) {
        self.lock().pending = None;
    }

    fn subscriber(&self, id: WatchId) -> Option<Subscriber> {
        self.lock().wanted.get(&id).map(|wanted| wanted.subscriber.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
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

/// The task that owns the stream.
#[derive(Debug)]
pub(crate) struct StreamTask {
    pub(crate) server: Server,
    pub(crate) state: SessionState,
    pub(crate) keys: ClientKeys,
    pub(crate) claims: Arc<ClaimRegistry>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) broken: Arc<BrokenHolds>,
    /// The revision from which the next stream watches the client's own keys; `None` before the first stream.
    pub(crate) next: Option<Revision>,
    /// The login with which the latest stream was opened, or a later one.
    pub(crate) login: LoginNumber,
}

impl StreamTask {
    /// Reads the first stream, and a new one whenever it breaks, until the session is over.
    pub(crate) async fn run(mut self, first: WatchStream) {
        let state = self.state.clone();
        tokio::select! {
            () = state.over() => {}
            never = self.follow_streams(first) => match never {},
        }
    }

    async fn follow_streams(&mut self, first: WatchStream) -> Infallible {
        let mut pauses = retry_pauses();
        let mut logs_in_at_once = true;
        let mut opened = Ok(first);
        loop {
            let (began, was_open) = (Instant::now(), opened.is_ok());
            let ended = match opened {
                Ok(stream) => {
                    self.watches.stream_began();
                    let Err(ended) = self.follow(stream).await;
                    self.watches.stream_ended();
                    ended
                }
                Err(fault) => fault,
            };
            debug!(?ended, "watch stream ended");
            let is_stale = ended.effect == Effect::LoginStale;
            // A server that refuses watches for lack of a permission opens every stream and then refuses its watches.
            // Such streams must not reset the pauses.
            if was_open && !is_stale || began.elapsed() > RETRY_PAUSE_MAX {
                (pauses, logs_in_at_once) = (retry_pauses(), true);
            }
            if !is_stale || !std::mem::replace(&mut logs_in_at_once, false) {
                pauses.wait().await;
            }
            if is_stale && let Err(fault) = self.server.log_in_after(self.login).await {
                debug!(?fault, "no new login for the watch stream");
            }
            opened = self.open().await;
        }
    }

    /// Opens a stream with the watch of the client's own keys. Waits until the server has confirmed that watch.
    pub(crate) async fn open(&mut self) -> Result<WatchStream, RequestError> {
        let from = self.next.unwrap_or(FROM_NOW_ON);
        let options = WatchOptions::new().with_prefix().with_watch_id(OWN_KEYS).with_start_revision(from);
        let request = |client: &Client| {
            let (mut watch, folder, options) =
                (client.watch_client(), self.keys.folder.clone(), options.clone());
            async move { watch.watch(folder, Some(options)).await }
        };
        let mut stream = self.server.call(request).await?;
        self.login = self.server.login();
        let first = async {
            stream.message().await?.ok_or_else(|| RequestError::unexpected("the server ended the stream"))
        };
        let created = bounded(self.server.request_timeout(), first).await?;
        if created.canceled() {
            return Err(self.own_watch_cancelled(&created).await);
        }
        let seen = revision_of(created.header())?;
        self.next.get_or_insert(seen + 1);
        Ok(stream)
    }

    async fn follow(&mut self, stream: WatchStream) -> Result<Infallible, RequestError> {
        let (sender, mut answers) = stream.split();
        let mut requests = Requests { sender, opened: HashSet::new() };
        loop {
            while let Some((id, wanted)) = self.watches.next_pending() {
                requests.apply(id, wanted).await?;
            }
            tokio::select! {
                answer = answers.message() => {
                    let answer = answer?.ok_or_else(|| RequestError::unexpected("the server ended the stream"))?;
                    self.handle(&answer, &mut requests).await?;
                }
                () = self.watches.changed.notified() => {}
            }
        }
    }

    async fn handle(&mut self, answer: &WatchResponse, requests: &mut Requests) -> Result<(), RequestError> {
        let id = answer.watch_id();
        if answer.canceled() {
            requests.opened.remove(&id);
            return self.cancelled(id, answer).await;
        }
        let subscriber = self.watches.subscriber(id);
        if let Some(Subscriber::Observer(observer)) = &subscriber {
            // Also for the reply that confirms the watch: the queue may have changed before.
            observer.notify_one();
        }
        for event in answer.events() {
            let Some(kv) = event.kv() else { continue };
            if id == OWN_KEYS {
                self.next = Some(kv.mod_revision() + 1);
                self.own_event(event, kv);
            } else if let Some(Subscriber::Waiter(waiter)) = &subscriber {
                waiter.predecessor_gone(kv.mod_revision());
            }
        }
        Ok(())
    }

    fn own_event(&self, event: &Event, kv: &KeyValue) {
        match event.event_type() {
            EventType::Put if kv.key() == self.keys.handoff_key.as_bytes() => self.deliver_handoff(kv),
            EventType::Put if kv.key() == self.keys.broken.as_bytes() => self.broken.report(kv, &self.claims),
            // Deleted with the lease, or by an operator who wants to end the session.
            EventType::Delete if kv.key() == self.keys.epoch.as_bytes() => self.state.mark_lost(),
            EventType::Put | EventType::Delete => {}
        }
    }

    fn deliver_handoff(&self, kv: &KeyValue) {
        match Handoff::from_json(kv.value()) {
            Some(handoff) => self.claims.deliver(handoff),
            None => debug!(key = %self.keys.handoff_key, "ignoring a handoff that no lockkit client wrote"),
        }
    }

    async fn cancelled(&mut self, id: WatchId, answer: &WatchResponse) -> Result<(), RequestError> {
        if id == OWN_KEYS {
            return Err(self.own_watch_cancelled(answer).await);
        }
        if answer.compact_revision() > 0 {
            match self.watches.subscriber(id) {
                Some(Subscriber::Waiter(waiter)) => waiter.predecessor_gone(0),
                Some(Subscriber::Observer(_)) => return Err(compacted()),
                None => {}
            }
            Ok(())
        } else if answer.created() || !answer.cancel_reason().is_empty() {
            // From 3.5 on the reply does not name the watch. The next stream opens all of them.
            Err(refused(answer))
        } else {
            // Cancelled by this client.
            Ok(())
        }
    }

    /// Returns why the stream ends after its own watch was cancelled. After a compaction the own keys are read, and the
    /// next stream starts behind that read.
    async fn own_watch_cancelled(&mut self, answer: &WatchResponse) -> RequestError {
        if answer.compact_revision() == 0 {
            return refused(answer);
        }
        let read = self.read_own_keys().await;
        read.err().unwrap_or_else(compacted)
    }

    /// Reads the own keys, because events about them were compacted.
    async fn read_own_keys(&mut self) -> Result<(), RequestError> {
        let answer = self.server.range(&self.keys.folder, GetOptions::new().with_prefix()).await?;
        let find = |key: &str| answer.kvs().iter().find(|kv| kv.key() == key.as_bytes());
        if find(&self.keys.epoch).is_none() {
            self.state.mark_lost();
        }
        if let Some(kv) = find(&self.keys.handoff_key) {
            self.deliver_handoff(kv);
        }
        if let Some(kv) = find(&self.keys.broken) {
            self.broken.report(kv, &self.claims);
        }
        self.next = Some(revision_of(answer.header())? + 1);
        Ok(())
    }
}

fn compacted() -> RequestError {
    RequestError::unexpected("the history of the watch was compacted")
}

/// The fault of a watch that the server refuses. The server's message is the same for a missing permission and for an
/// expired login. A stream keeps the login with which it was opened; each of its watches is checked against that login.
fn refused(answer: &WatchResponse) -> RequestError {
    RequestError::new(Effect::LoginStale, ErrorKind::Denied, answer.cancel_reason().to_owned())
}

/// The sending half of a stream, and the watches that were opened on it, except that of the client's own keys.
struct Requests {
    sender: WatchRequestSender,
    opened: HashSet<WatchId>,
}

impl Requests {
    /// Opens or cancels one watch, as the table demands.
    async fn apply(&mut self, id: WatchId, wanted: Option<WantedWatch>) -> Result<(), RequestError> {
        match wanted {
            Some(wanted) if self.opened.insert(id) => {
                let options = wanted.options().with_watch_id(id);
                Ok(self.sender.watch(wanted.key, Some(options)).await?)
            }
            None if self.opened.remove(&id) => Ok(self.sender.cancel(id).await?),
            _ => Ok(()),
        }
    }
}
