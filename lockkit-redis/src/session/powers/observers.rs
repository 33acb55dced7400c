//! Watches on leaders. All watches of a client on one lock share a subscription.
//!
//! Failure cases:
//!
//! * A message is a hint. It may come too early, twice, or never.
//! * The connection is replaced: messages may be lost until all channels are subscribed again. Then every watch wakes.
//! * The leader dies: Redis reports nothing. Each answer about the leader says when its lock expires, and its watches
//!   wake at that time.
//! * SUBSCRIBE is refused, or not answered: the new watch fails. For watches that exist it is repeated, with pauses.
//! * A watch is dropped: the channel is unsubscribed after the last one. One task sends all subscriptions of a session,
//!   one after another, so no UNSUBSCRIBE can overtake a later SUBSCRIBE.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkit_core::{
    backend::{LeaderWatch, retry_pauses},
    support::lock,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::debug;

use crate::{
    error::{Effect, RequestError},
    reconnect::{ConnectionState, OpenConnection},
};

/// The locks that a session watches.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    /// By their channel, with the number of watches.
    locks: Mutex<HashMap<String, (usize, Arc<WatchedLock>)>>,
    /// Notified when a channel is watched for the first time, or no longer.
    changed: Notify,
}

/// What the watches on one lock share.
#[derive(Debug, Default)]
struct WatchedLock {
    /// The outcome of the last SUBSCRIBE.
    subscribed: watch::Sender<Option<Result<(), RequestError>>>,
    /// Changes with every hint.
    hints: watch::Sender<()>,
    /// When the lock expires, by the last answer; `None` if that is not known.
    ends: watch::Sender<Option<Instant>>,
}

impl Observers {
    /// Wakes the watches of this channel.
    pub(crate) fn wake(&self, channel: &str) {
        if let Some((_, watched)) = self.lock().get(channel) {
            watched.hints.send_replace(());
        }
    }

    /// Wakes all watches: messages may have been lost.
    pub(crate) fn wake_all(&self) {
        for (_, watched) in self.lock().values() {
            watched.hints.send_replace(());
        }
    }

    /// Notes when the lock of this channel expires.
    pub(super) fn note_end(&self, channel: &str, ends: Option<Instant>) {
        if let Some((_, watched)) = self.lock().get(channel) {
            watched.ends.send_replace(ends);
        }
    }

    /// Subscribes to the channels of all watches, over every connection, until there are no more connections.
    pub(crate) async fn keep_subscribed(
        self: Arc<Self>,
        mut connections: watch::Receiver<ConnectionState>,
        request_timeout: Duration,
    ) {
        let mut pauses = retry_pauses();
        loop {
            let state = connections.borrow_and_update().clone();
            let mut subscribed = HashSet::new();
            loop {
                let is_complete = match &state {
                    ConnectionState::Up(open) => self.adjust(open, &mut subscribed, request_timeout).await,
                    ConnectionState::Opening | ConnectionState::Down(_) => true,
                };
                if is_complete {
                    pauses = retry_pauses();
                }
                tokio::select! {
                    replaced = connections.changed() => match replaced {
                        Ok(()) => break,
                        // The session has been dropped.
                        Err(_) => return,
                    },
                    () = self.changed.notified() => {}
                    () = pauses.wait(), if !is_complete => {}
                }
            }
        }
    }

    /// Subscribes to what is watched, and unsubscribes from what is not watched any more. Returns whether all
    /// subscriptions have succeeded.
    async fn adjust(
        &self,
        open: &OpenConnection,
        subscribed: &mut HashSet<String>,
        request_timeout: Duration,
    ) -> bool {
        let wanted: HashMap<String, Arc<WatchedLock>> =
            self.lock().iter().map(|(channel, (_, watched))| (channel.clone(), watched.clone())).collect();
        let unwanted: Vec<String> = subscribed.extract_if(|channel| !wanted.contains_key(channel)).collect();
        join_all(unwanted.iter().map(|channel| unsubscribe(open, channel, request_timeout))).await;
        let outcomes = wanted.into_iter().map(|(channel, watched)| {
            let is_new = !subscribed.contains(&channel);
            async move {
                let outcome = match is_new {
                    true => subscribe(open, &channel, request_timeout).await,
                    false => Ok(()),
                };
                (channel, watched, is_new, outcome)
            }
        });
        let mut is_complete = true;
        for (channel, watched, is_new, outcome) in join_all(outcomes).await {
            is_complete &= outcome.is_ok();
            if is_new && outcome.is_ok() {
                // What was published before is lost.
                watched.hints.send_replace(());
                subscribed.insert(channel);
            }
            watched.subscribed.send_replace(Some(outcome));
        }
        is_complete
    }

    fn join(&self, channel: &str) -> Arc<WatchedLock> {
        let mut locks = self.lock();
        let (count, watched) = locks.entry(channel.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            self.changed.notify_one();
        }
        Arc::clone(watched)
    }

    fn leave(&self, channel: &str) {
        let mut locks = self.lock();
        let Some((count, _)) = locks.get_mut(channel) else { return };
        *count -= 1;
        if *count == 0 {
            locks.remove(channel);
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (usize, Arc<WatchedLock>)>> {
        lock(&self.locks)
    }
}

async fn subscribe(open: &OpenConnection, channel: &str, limit: Duration) -> Result<(), RequestError> {
    let answer = timeout(limit, open.subscribe(channel)).await;
    let outcome = answer.unwrap_or_else(|_| Err(RequestError::no_reply()));
    outcome.inspect_err(|fault| note_failure(open, channel, fault))
}

async fn unsubscribe(open: &OpenConnection, channel: &str, limit: Duration) {
    let answer = timeout(limit, open.unsubscribe(channel)).await;
    let outcome = answer.unwrap_or_else(|_| Err(RequestError::no_reply()));
    // On failure, messages of the channel are ignored until the connection is replaced.
    let _ = outcome.inspect_err(|fault| note_failure(open, channel, fault));
}

fn note_failure(open: &OpenConnection, channel: &str, fault: &RequestError) {
    debug!(?fault, channel, "cannot change a subscription");
    if fault.effect != Effect::Refused {
        open.note_failure(fault);
    }
}

/// A watch on the leader of one lock.
#[derive(Debug)]
pub(super) struct RedisLeaderWatch {
    observers: Arc<Observers>,
    channel: String,
    watched: Arc<WatchedLock>,
    hints: watch::Receiver<()>,
    ends: watch::Receiver<Option<Instant>>,
    /// The end of the lock at which this watch has woken.
    reported_end: Option<Instant>,
}

impl RedisLeaderWatch {
    /// Joins the watches of this channel.
    pub(super) fn new(observers: Arc<Observers>, channel: String) -> Self {
        let watched = observers.join(&channel);
        let (hints, ends) = (watched.hints.subscribe(), watched.ends.subscribe());
        Self { observers, channel, watched, hints, ends, reported_end: None }
    }

    /// Waits until the channel is subscribed to.
    pub(super) async fn subscribed(&mut self) -> Result<(), RequestError> {
        let mut subscribed = self.watched.subscribed.subscribe();
        let outcome = subscribed.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        // The sender is never dropped before the watch.
        outcome.ok().flatten().unwrap_or_else(|| Err(RequestError::session_closed()))?;
        // Hints from now on are news.
        self.hints.mark_unchanged();
        Ok(())
    }
}

#[async_trait]
impl LeaderWatch for RedisLeaderWatch {
    async fn changed(&mut self) {
        loop {
            let ends = *self.ends.borrow_and_update();
            let due = async {
                match ends.filter(|_| ends != self.reported_end) {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                hint = self.hints.changed() => if hint.is_ok() { return },
                () = due => {
                    self.reported_end = ends;
                    return;
                }
                _ = self.ends.changed() => {}
            }
        }
    }
}

impl Drop for RedisLeaderWatch {
    fn drop(&mut self) {
        self.observers.leave(&self.channel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_core::limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};

    use super::*;
    use crate::{
        tests::scripted::{Answer, connection_to, greeting, silent_connection},
        topology::{Connection, PushHandler},
    };

    /// Longer than all pauses of a test together.
    const LONG: Duration = Duration::from_secs(600);

    /// A server that refuses the first subscriptions.
    #[derive(Default)]
    struct Refusing {
        refusals: AtomicUsize,
        tries: Mutex<Vec<Instant>>,
    }

    impl Refusing {
        fn answer(&self, words: &[String]) -> Answer {
            if words[0] != "SUBSCRIBE" {
                return greeting(words);
            }
            lock(&self.tries).push(Instant::now());
            let left = self.refusals.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
            let channel = &words[1];
            Answer::Text(match left {
                Ok(_) => "-NOPERM not yet\r\n".to_owned(),
                Err(_) => format!(">3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:1\r\n", channel.len()),
            })
        }

        /// Returns the pauses between the tries since the last call.
        fn pauses(&self) -> Vec<Duration> {
            let tries = std::mem::take(&mut *lock(&self.tries));
            tries.windows(2).map(|pair| pair[1] - pair[0]).collect()
        }
    }

    /// Each watch that joins later would else wait for as long as the last one of an outage.
    #[tokio::test(start_paused = true)]
    async fn refused_subscription_is_repeated_with_pauses_that_begin_again_after_a_success() {
        let (observers, server) = (Arc::<Observers>::default(), Arc::<Refusing>::default());
        let answering = Arc::clone(&server);
        let connection = connection_to(move |_, words| answering.answer(words)).await;
        let open = OpenConnection::new(Connection::node(connection), PushHandler::ignore_all());
        let (_state, connections) = watch::channel(ConnectionState::Up(open));
        tokio::spawn(Arc::clone(&observers).keep_subscribed(connections, LONG));
        // It waits for the first watch.
        tokio::task::yield_now().await;
        let subscribe = async |channel: &str, refusals: usize| {
            server.refusals.store(refusals, SeqCst);
            let mut watch = RedisLeaderWatch::new(Arc::clone(&observers), channel.to_owned());
            let refused = watch.subscribed().await.unwrap_err();
            assert_eq!(refused.effect, Effect::Refused, "{refused:?}");
            timeout(LONG, watch.changed()).await.expect("it is repeated until it succeeds");
            watch.subscribed().await.unwrap();
            (watch, server.pauses())
        };
        let (_first, pauses) = subscribe("first", 12).await;
        assert!(pauses.len() == 12 && pauses[11] >= RETRY_PAUSE_MAX / 2, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause >= RETRY_PAUSE_MIN), "{pauses:?}");
        let (_second, pauses) = subscribe("second", 1).await;
        // The timer has a resolution of one millisecond.
        let longest = 2 * RETRY_PAUSE_MIN + Duration::from_millis(1);
        assert!(pauses.len() == 1 && pauses[0] <= longest, "{pauses:?}");
    }

    /// The task that subscribes does not run in between.
    #[tokio::test(start_paused = true)]
    async fn watch_right_after_the_end_of_the_last_one_is_subscribed() {
        let (observers, server) = (Arc::<Observers>::default(), Refusing::default());
        let connection = connection_to(move |_, words| server.answer(words)).await;
        let open = OpenConnection::new(Connection::node(connection), PushHandler::ignore_all());
        let (_state, connections) = watch::channel(ConnectionState::Up(open));
        tokio::spawn(Arc::clone(&observers).keep_subscribed(connections, LONG));
        for round in 0..3 {
            let mut watch = RedisLeaderWatch::new(Arc::clone(&observers), "channel".to_owned());
            let subscribed = timeout(LONG, watch.subscribed()).await;
            subscribed.unwrap_or_else(|_| panic!("round {round}: no answer")).unwrap();
        }
    }

    /// It may be a black hole, and an observer sends nothing else.
    #[tokio::test(start_paused = true)]
    async fn connection_that_answers_no_subscription_is_given_up() {
        let observers = Arc::<Observers>::default();
        let open = silent_connection(PushHandler::ignore_all()).await;
        let (_state, connections) = watch::channel(ConnectionState::Up(open.clone()));
        tokio::spawn(Arc::clone(&observers).keep_subscribed(connections, LONG / 10));
        let mut watch = RedisLeaderWatch::new(Arc::clone(&observers), "channel".to_owned());
        let fault = timeout(LONG, watch.subscribed()).await.expect("it has a time limit").unwrap_err();
        assert!(fault.may_have_executed() && open.health.is_broken(), "{fault:?}");
    }

    /// A pinned lock that is left may expire before the end that was known.
    #[tokio::test(start_paused = true)]
    async fn watch_wakes_at_the_end_that_was_noted_last() {
        let observers = Arc::<Observers>::default();
        let mut watch = RedisLeaderWatch::new(Arc::clone(&observers), "channel".to_owned());
        let start = Instant::now();
        let after = |seconds| Some(start + Duration::from_secs(seconds));
        observers.note_end("channel", after(3600));
        let note_another = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            observers.note_end("channel", after(60));
        };
        tokio::join!(watch.changed(), note_another);
        assert_eq!(start.elapsed().as_secs(), 60);
        let again = timeout(Duration::from_secs(7200), watch.changed()).await;
        assert!(again.is_err(), "it has woken for this end");
    }
}
