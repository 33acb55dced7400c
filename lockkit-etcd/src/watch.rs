//! The one watch stream of a session: mail, the end of the session, and the predecessors of its waiting claims.
//!
//! Failure cases:
//!
//! * The stream breaks (server restarted, connection reset, leader lost): it never comes back by itself. A new one is
//!   opened, with growing pauses, and every watch goes on behind the last event that it has seen.
//! * What a watch wants to see has been compacted away: the client's own keys are read, of several mails only the last
//!   one is left then; a predecessor's watch is answered by a look. Lost mails are found by the waiters' re-checks.
//! * The login ends: open watches go on, new ones are refused. The stream ends, and the next one has a new login.
//! * The server stays silent: HTTP/2 pings end the connection, and until then the waiters' re-checks do the work.
//!
//! Which watches there should be stands in a table; the task that owns the stream makes it so, one entry after the
//! other. A claim adds and removes its watch without waiting for the server.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use etcd_client::{
    Client, Event, EventType, GetOptions, KeyValue, WatchFilterType, WatchOptions, WatchRequestSender,
    WatchResponse, WatchStream,
};
use lockkit_core::{ErrorKind, backend::retry_pauses, limits::RETRY_PAUSE_MAX};
use tokio::{sync::Notify, time::Instant};
use tracing::debug;

use crate::{
    call::{Server, bounded},
    claims::{Claims, Place},
    error::{Effect, Fault},
    keys::ClientKeys,
    life::Life,
    login::LoginNumber,
    mail::Mail,
    txn::{Revision, revision_of},
};

/// The watch of the client's own keys; the ids of other watches are greater.
const OWN_KEYS: WatchId = 1;

type WatchId = i64;

/// A start revision. A watch that begins in the past waits for a loop of the server that runs every 100 ms.
const FROM_NOW_ON: Revision = 0;

/// The watches on predecessors that there should be.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    table: Mutex<Table>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    wanted: HashMap<WatchId, Wanted>,
    /// Entries that were added or removed and that the stream's task has not looked at; `None` while there is no stream.
    fresh: Option<VecDeque<WatchId>>,
    last_id: WatchId,
}

impl Table {
    fn changed(&mut self, id: WatchId) {
        if let Some(fresh) = &mut self.fresh {
            fresh.push_back(id);
        }
    }
}

#[derive(Clone, Debug)]
struct Wanted {
    key: Vec<u8>,
    from: Revision,
    waiter: Arc<Place>,
}

impl Watches {
    /// Watches a predecessor's key from this revision on, for its deletion, until the answer is dropped.
    pub(crate) fn add(self: &Arc<Self>, key: Vec<u8>, from: Revision, waiter: &Arc<Place>) -> Watching {
        let mut table = self.lock();
        table.last_id = table.last_id.max(OWN_KEYS) + 1;
        let id = table.last_id;
        table.wanted.insert(id, Wanted { key, from, waiter: Arc::clone(waiter) });
        table.changed(id);
        drop(table);
        self.changed.notify_one();
        Watching { watches: Arc::clone(self), id }
    }

    fn remove(&self, id: WatchId) {
        let mut table = self.lock();
        table.wanted.remove(&id);
        table.changed(id);
        drop(table);
        self.changed.notify_one();
    }

    /// The next entry that the stream's task has to look at: wanted, or not wanted any more.
    fn next_fresh(&self) -> Option<(WatchId, Option<Wanted>)> {
        let mut table = self.lock();
        let id = table.fresh.as_mut()?.pop_front()?;
        Some((id, table.wanted.get(&id).cloned()))
    }

    /// A new stream knows no watch yet.
    fn stream_began(&self) {
        let mut table = self.lock();
        table.fresh = Some(table.wanted.keys().copied().collect());
    }

    fn stream_ended(&self) {
        self.lock().fresh = None;
    }

    fn waiter(&self, id: WatchId) -> Option<Arc<Place>> {
        self.lock().wanted.get(&id).map(|wanted| Arc::clone(&wanted.waiter))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A watch on a predecessor; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watching {
    watches: Arc<Watches>,
    id: WatchId,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watches.remove(self.id);
    }
}

/// What the task of the stream works on.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) server: Server,
    pub(crate) life: Life,
    pub(crate) keys: ClientKeys,
    pub(crate) claims: Arc<Claims>,
    pub(crate) watches: Arc<Watches>,
    /// The next revision of the client's own keys that has not been seen; `None` before the first stream.
    pub(crate) next: Option<Revision>,
    /// The login that the latest stream was opened with, or a later one.
    pub(crate) login: LoginNumber,
}

impl Follower {
    /// Follows the first stream, and the next one when it breaks, until the session is over.
    pub(crate) async fn run(mut self, first: WatchStream) {
        let life = self.life.clone();
        tokio::select! {
            () = life.over() => {}
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
            // A server that refuses what no login allows opens every stream and refuses its watches: that must not count.
            if was_open && !is_stale || began.elapsed() > RETRY_PAUSE_MAX {
                (pauses, logs_in_at_once) = (retry_pauses(), true);
            }
            if !is_stale || !std::mem::replace(&mut logs_in_at_once, false) {
                tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
            }
            if is_stale && let Err(fault) = self.server.log_in_after(self.login).await {
                debug!(?fault, "no new login for the watch stream");
            }
            opened = self.open().await;
        }
    }

    /// Opens a stream with the watch of the client's own keys, and waits until the server has confirmed it.
    pub(crate) async fn open(&mut self) -> Result<WatchStream, Fault> {
        let from = self.next.unwrap_or(FROM_NOW_ON);
        let options = WatchOptions::new().with_prefix().with_watch_id(OWN_KEYS).with_start_revision(from);
        let request = |client: &Client| {
            let (mut watch, folder, options) =
                (client.watch_client(), self.keys.folder.clone(), options.clone());
            async move { watch.watch(folder, Some(options)).await }
        };
        let mut stream = self.server.call(request).await?;
        self.login = self.server.login();
        let first =
            async { stream.message().await?.ok_or_else(|| Fault::nonsense("the server ended the stream")) };
        let created = bounded(self.server.request_timeout(), first).await?;
        if created.canceled() {
            return Err(self.cancelled_own(&created).await);
        }
        let seen = revision_of(created.header())?;
        self.next.get_or_insert(seen + 1);
        Ok(stream)
    }

    async fn follow(&mut self, stream: WatchStream) -> Result<Infallible, Fault> {
        let (sender, mut answers) = stream.split();
        let mut requests = Requests { sender, opened: HashSet::new() };
        loop {
            while let Some((id, wanted)) = self.watches.next_fresh() {
                requests.apply(id, wanted).await?;
            }
            tokio::select! {
                answer = answers.message() => {
                    let answer = answer?.ok_or_else(|| Fault::nonsense("the server ended the stream"))?;
                    self.handle(&answer, &mut requests).await?;
                }
                () = self.watches.changed.notified() => {}
            }
        }
    }

    async fn handle(&mut self, answer: &WatchResponse, requests: &mut Requests) -> Result<(), Fault> {
        let id = answer.watch_id();
        if answer.canceled() {
            requests.opened.remove(&id);
            return self.cancelled(id, answer).await;
        }
        for event in answer.events() {
            let Some(kv) = event.kv() else { continue };
            if id == OWN_KEYS {
                self.next = Some(kv.mod_revision() + 1);
                self.own_event(event, kv);
            } else if let Some(waiter) = self.watches.waiter(id) {
                waiter.predecessor_gone(kv.mod_revision());
            }
        }
        Ok(())
    }

    fn own_event(&self, event: &Event, kv: &KeyValue) {
        match event.event_type() {
            EventType::Put if kv.key() == self.keys.mailbox.as_bytes() => self.mail(kv),
            // It goes with the lease, or an operator took it away to end the session.
            EventType::Delete if kv.key() == self.keys.epoch.as_bytes() => self.life.lose(),
            EventType::Put | EventType::Delete => {}
        }
    }

    fn mail(&self, kv: &KeyValue) {
        match Mail::from_json(kv.value()) {
            Some(mail) => self.claims.deliver(&mail, kv.mod_revision()),
            None => debug!(key = %self.keys.mailbox, "a mail that no lockkit client wrote"),
        }
    }

    async fn cancelled(&mut self, id: WatchId, answer: &WatchResponse) -> Result<(), Fault> {
        if id == OWN_KEYS {
            return Err(self.cancelled_own(answer).await);
        }
        if answer.compact_revision() > 0 {
            if let Some(waiter) = self.watches.waiter(id) {
                waiter.predecessor_gone(0);
            }
            Ok(())
        } else if answer.created() || !answer.cancel_reason().is_empty() {
            // From 3.5 on the answer does not say which watch is meant: the next stream opens all of them.
            Err(refused(answer))
        } else {
            // Cancelled by this client.
            Ok(())
        }
    }

    /// Why a stream ends whose own watch was cancelled; after a compaction the next one begins behind what was read.
    async fn cancelled_own(&mut self, answer: &WatchResponse) -> Fault {
        if answer.compact_revision() == 0 {
            return refused(answer);
        }
        let read = self.catch_up().await;
        read.err().unwrap_or_else(|| Fault::nonsense("the history of the watch was compacted"))
    }

    /// Reads what the compacted history would have told.
    async fn catch_up(&mut self) -> Result<(), Fault> {
        let answer = self.server.range(&self.keys.folder, GetOptions::new().with_prefix()).await?;
        let find = |key: &str| answer.kvs().iter().find(|kv| kv.key() == key.as_bytes());
        if find(&self.keys.epoch).is_none() {
            self.life.lose();
        }
        if let Some(kv) = find(&self.keys.mailbox) {
            self.mail(kv);
        }
        self.next = Some(revision_of(answer.header())? + 1);
        Ok(())
    }
}

/// A watch that the server refuses, in the same words whether the user lacks the right or its login has ended. A stream
/// keeps the login that it was opened with, and every watch that is opened on it is checked against that.
fn refused(answer: &WatchResponse) -> Fault {
    Fault::new(Effect::LoginStale, ErrorKind::Denied, answer.cancel_reason().to_owned())
}

/// The sending half of a stream, and the predecessors' watches that the server knows of.
struct Requests {
    sender: WatchRequestSender,
    opened: HashSet<WatchId>,
}

impl Requests {
    /// Makes the server's watches what the table wants.
    async fn apply(&mut self, id: WatchId, wanted: Option<Wanted>) -> Result<(), Fault> {
        match wanted {
            Some(Wanted { key, from, .. }) if self.opened.insert(id) => {
                let options = WatchOptions::new()
                    .with_watch_id(id)
                    .with_start_revision(from)
                    .with_filters([WatchFilterType::NoPut]);
                Ok(self.sender.watch(key, Some(options)).await?)
            }
            None if self.opened.remove(&id) => Ok(self.sender.cancel(id).await?),
            _ => Ok(()),
        }
    }
}
