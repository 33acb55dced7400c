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
//! one, so a claim adds and removes its watch without waiting for the server. Most watches that nobody needs any more
//! are cancelled a little later, together ([`requests`]).

mod requests;
mod table;

use std::{convert::Infallible, sync::Arc};

use lockkit_core::{
    ErrorKind,
    backend::retry_pauses,
    limits::RETRY_PAUSE_MAX,
    support::{BrokenHolds, SessionState, bounded},
};
use tokio::time::Instant;
use tracing::debug;

pub(crate) use self::{
    requests::Cancel,
    table::{WatchGuard, Watches},
};
use self::{requests::Requests, table::Subscriber};
use super::registry::ClaimRegistry;
use crate::{
    broken::BrokenHold,
    call::Server,
    client::{Client, Event, EventType, GetOptions, KeyValue, WatchOptions, WatchResponse, WatchStream},
    error::{Effect, RequestError},
    handoff::Handoff,
    keys::ClientKeys,
    login::LoginNumber,
    wire::{Revision, revision_of},
};

/// The watch of the client's own keys; the ids of other watches are greater.
const OWN_KEYS: WatchId = 1;

type WatchId = i64;

/// Start revision of a watch of future events only. The server serves watches that start in the past only every 100 ms.
const FROM_NOW_ON: Revision = 0;

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
        let mut requests = Requests::new(sender);
        loop {
            tokio::select! {
                // Answers first: if a new stream sent the requests of many watches and read nothing, both sides would
                // wait for each other in the end.
                biased;
                answer = answers.message() => {
                    let answer = answer?.ok_or_else(|| RequestError::unexpected("the server ended the stream"))?;
                    self.handle(&answer, &mut requests).await?;
                }
                () = requests.due() => requests.cancel_unneeded().await?,
                (id, wanted) = self.watches.next() => requests.apply(id, wanted).await?,
            }
        }
    }

    async fn handle(&mut self, answer: &WatchResponse, requests: &mut Requests) -> Result<(), RequestError> {
        let id = answer.watch_id();
        if answer.canceled() {
            requests.cancelled(id);
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
            EventType::Put if kv.key() == self.keys.broken.as_bytes() => self.report_broken(kv),
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

    /// Returns why the stream ends after its own watch was cancelled. After a compaction the client's own keys are
    /// read, and the next stream starts behind that read.
    async fn own_watch_cancelled(&mut self, answer: &WatchResponse) -> RequestError {
        if answer.compact_revision() == 0 {
            return refused(answer);
        }
        let read = self.read_own_keys().await;
        read.err().unwrap_or_else(compacted)
    }

    /// Reports the hold that this key names. One whose grant the client has not learned of yet is found by its heartbeat.
    fn report_broken(&self, kv: &KeyValue) {
        let broken = BrokenHold::from_json(kv.value());
        if let Some(hold) = broken.and_then(|broken| self.claims.broken(&broken)) {
            self.broken.add(hold);
        }
    }

    /// Reads the client's own keys, because events about them were compacted.
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
            self.report_broken(kv);
        }
        self.next = Some(revision_of(answer.header())? + 1);
        Ok(())
    }
}

fn compacted() -> RequestError {
    RequestError::unexpected("the history of the watch was compacted")
}

/// Returns the fault of a watch that the server refuses. The server's message is the same for a missing permission and
/// for an expired login. A stream keeps the login with which it was opened; each of its watches is checked against that
/// login.
fn refused(answer: &WatchResponse) -> RequestError {
    RequestError::new(Effect::LoginStale, ErrorKind::Denied, answer.cancel_reason().to_owned())
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::fresh_name;

    use super::*;
    use crate::{
        client::scripted::Script,
        session::tests::{config, server},
    };

    fn task(script: &Script) -> StreamTask {
        StreamTask {
            server: server(script, 1),
            state: SessionState::default(),
            keys: config(1).layout().client(7),
            claims: Arc::default(),
            watches: Arc::default(),
            broken: Arc::default(),
            next: None,
            login: LoginNumber::default(),
        }
    }

    /// The second stream may break before it has reported what the first one has missed.
    #[tokio::test(start_paused = true)]
    async fn confirmation_of_a_reopened_stream_does_not_move_its_beginning() {
        let script = Script::default();
        let mut task = task(&script);
        for _ in 0..2 {
            let _stream = task.open().await.unwrap();
            assert_eq!(task.next, Some(1));
            script.put(&task.keys.handoff_key, "");
        }
    }

    /// Its id stays in use on this stream.
    #[tokio::test(start_paused = true)]
    async fn compacted_watch_of_a_queue_ends_the_stream() {
        let mut task = task(&Script::default());
        let queue = config(1).layout().queue(&fresh_name()).unwrap();
        let _watch = task.watches.observe(&queue, &Arc::default());
        let watch_id = OWN_KEYS + 1;
        let answer =
            WatchResponse { watch_id, canceled: true, compact_revision: 7, ..WatchResponse::default() };
        task.cancelled(watch_id, &answer).await.unwrap_err();
    }

    /// It would report nothing, and not every server says why.
    #[tokio::test(start_paused = true)]
    async fn watch_that_is_refused_without_a_reason_ends_the_stream() {
        let mut task = task(&Script::default());
        let watch_id = OWN_KEYS + 1;
        // The other one was cancelled by this client.
        for created in [true, false] {
            let answer = WatchResponse { watch_id, created, canceled: true, ..WatchResponse::default() };
            assert_eq!(task.cancelled(watch_id, &answer).await.is_err(), created);
        }
    }
}
