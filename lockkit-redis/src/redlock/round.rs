//! A request to several nodes at once.
//!
//! * Its futures run in the task that waits for the replies: an uncontended acquire spawns no task while it waits.
//! * The waiter has enough replies, gives up or is dropped: the futures that are left move to a task of their own. None
//!   is dropped half-way, as each owns what its request does at a node.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::Duration,
};

use lockkit_core::support::lock;
use tokio::time::Instant;

use super::node::Node;

/// How long a majority waits for the other nodes: the most that a node without a reply can delay a request.
pub(super) const STRAGGLER_WAIT: Duration = Duration::from_millis(20);

/// The replies to a request that was sent to several nodes.
#[derive(Debug)]
pub(super) struct Round<T, F>
where
    F: Future<Output = ()> + Send + 'static,
{
    running: Running<F>,
    replies: Replies<T>,
    /// How long the other nodes may still reply, once there is enough.
    until: Option<Instant>,
}

impl<T, F> Round<T, F>
where
    F: Future<Output = ()> + Send + 'static,
{
    /// Runs `work` at these nodes. Nothing is sent before the first reply is waited for, or the round is dropped.
    pub(super) fn new(
        nodes: impl Iterator<Item = (usize, Arc<Node>)>,
        work: impl Fn(usize, Arc<Node>, ReplySender<T>) -> F,
    ) -> Self {
        let replies = Replies::default();
        let start = |(number, node)| Box::pin(work(number, node, ReplySender::new(number, &replies)));
        Self { running: Running(nodes.map(start).collect()), replies, until: None }
    }

    /// Returns the next reply; `None` once all nodes have replied. Once there is enough, the other nodes have
    /// [`STRAGGLER_WAIT`] left.
    pub(super) async fn next(&mut self, is_enough: bool) -> Option<(usize, T)> {
        let (running, replies) = (&mut self.running, &self.replies);
        let next = poll_fn(|cx| {
            let _ = poll_all(&mut running.0, cx);
            replies.take()
        });
        if !is_enough {
            return next.await;
        }
        let until = *self.until.get_or_insert_with(|| Instant::now() + STRAGGLER_WAIT);
        tokio::time::timeout_at(until, next).await.ok().flatten()
    }

    /// Lets it run without a waiter.
    pub(super) fn in_background(self) {}
}

/// Futures that all run in one task.
#[derive(Debug)]
struct Running<F>(Vec<Pin<Box<F>>>)
where
    F: Future<Output = ()> + Send + 'static;

impl<F> Drop for Running<F>
where
    F: Future<Output = ()> + Send + 'static,
{
    fn drop(&mut self) {
        let mut rest = std::mem::take(&mut self.0);
        if rest.is_empty() {
            return;
        }
        // Without a runtime, the process or the runtime ends.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { poll_fn(|cx| poll_all(&mut rest, cx)).await });
        }
    }
}

/// Polls all of these futures: there are few, and a poll costs less than to know which one was woken.
fn poll_all<F: Future<Output = ()>>(running: &mut Vec<Pin<Box<F>>>, cx: &mut Context<'_>) -> Poll<()> {
    running.retain_mut(|future| future.as_mut().poll(cx).is_pending());
    if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
}

/// The replies that the waiter has not taken yet.
#[derive(Debug)]
struct Replies<T>(Arc<Mutex<ReplyState<T>>>);

#[derive(Debug)]
struct ReplyState<T> {
    arrived: Vec<(usize, T)>,
    /// How many nodes have not replied.
    missing: usize,
}

impl<T> Replies<T> {
    /// Returns the next reply; `None` once there will be no more.
    fn take(&self) -> Poll<Option<(usize, T)>> {
        let mut state = self.lock();
        match state.arrived.pop() {
            None if state.missing > 0 => Poll::Pending,
            next => Poll::Ready(next),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReplyState<T>> {
        lock(&self.0)
    }
}

impl<T> Default for Replies<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(ReplyState { arrived: Vec::new(), missing: 0 })))
    }
}

/// Sends one node's reply to the [`Round`] that waits for it.
#[derive(Debug)]
pub(super) struct ReplySender<T> {
    number: usize,
    replies: Replies<T>,
}

impl<T> ReplySender<T> {
    fn new(number: usize, replies: &Replies<T>) -> Self {
        replies.lock().missing += 1;
        Self { number, replies: Replies(Arc::clone(&replies.0)) }
    }

    /// Sends the reply. Must be called while the round polls: nothing else wakes it.
    pub(super) fn send(self, answer: T) {
        self.replies.lock().arrived.push((self.number, answer));
    }
}

/// A node that ends without a reply is not waited for.
impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        self.replies.lock().missing -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_conformance::direct::HANG;
    use tokio::sync::Semaphore;

    use super::{
        super::{config::RedlockConfig, nodes::Nodes},
        *,
    };
    use crate::RedisConfig;

    /// Nodes at addresses where no server listens.
    fn nodes() -> Nodes {
        let unreachable = RedisConfig::new(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]).unwrap();
        RedlockConfig::new(unreachable).unwrap().connect(Duration::from_secs(1))
    }

    /// Nodes of which the first replies at once, and the others when they get a permit. Counts those that have ended.
    fn start(
        permits: &Arc<Semaphore>,
        ended: &Arc<AtomicUsize>,
    ) -> Round<(), impl Future<Output = ()> + Send + use<>> {
        nodes().at_all(|number, _, reply| {
            let (permits, ended) = (Arc::clone(permits), Arc::clone(ended));
            async move {
                if number > 0 {
                    permits.acquire().await.unwrap().forget();
                }
                ended.fetch_add(1, SeqCst);
                reply.send(());
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn replies_come_as_they_arrive_and_then_none() {
        let (permits, ended) = (Arc::new(Semaphore::new(0)), Arc::default());
        let mut round = start(&permits, &ended);
        assert_eq!(round.next(false).await, Some((0, ())));
        assert_eq!(round.next(true).await, None, "enough, and no other reply in time");
        permits.add_permits(2);
        let rest =
            [round.next(false).await, round.next(false).await].map(|reply| reply.map(|(node, ())| node));
        assert!(rest.contains(&Some(1)) && rest.contains(&Some(2)), "{rest:?}");
        assert_eq!(round.next(false).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_nodes_have_one_wait_together() {
        let mut round = nodes().at_all(|number, _, reply: ReplySender<()>| async move {
            tokio::time::sleep(STRAGGLER_WAIT * u32::try_from(3 * number).unwrap() / 4).await;
            reply.send(());
        });
        let start = Instant::now();
        let replies = [round.next(true).await, round.next(true).await, round.next(true).await];
        assert_eq!(replies, [Some((0, ())), Some((1, ())), None]);
        assert!(start.elapsed() < STRAGGLER_WAIT * 3 / 2, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn dropped_round_runs_to_its_end() {
        let (permits, ended) = (Arc::new(Semaphore::new(0)), Arc::default());
        let mut round = start(&permits, &ended);
        assert_eq!(round.next(false).await, Some((0, ())));
        drop(round);
        start(&permits, &ended).in_background();
        permits.add_permits(4);
        let all = async {
            while ended.load(SeqCst) < 6 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(HANG, all).await.expect("all of them end");
    }
}
