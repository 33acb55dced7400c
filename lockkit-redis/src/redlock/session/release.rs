//! Removing an attempt from all nodes where a key of it may be: the release of a grant, or the clean-up of a failed
//! attempt. The request is retried at each node until it is answered.
//!
//! * A node does not answer: the other nodes suffice. The request is retried in the background until the key must have
//!   expired.
//! * Nothing was sent to a node for this attempt: nothing is sent now. A waiter makes many attempts while a node is
//!   away.
//! * A node refused the attempt, and no other request was sent there: nothing is sent now. This is the usual case for
//!   waiters.
//! * Many clean-ups are being retried at a node: further ones are sent once. What they leave is a key that nobody
//!   renews, and that expires. Releases are always retried: each ends a hold, and may have to raise the counter.
//! * No majority answers: the caller gets an error and may wait again, which sends nothing again.

use std::{sync::Arc, time::Duration};

use lockkit_core::{backend::retry_pauses, lease};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tracing::debug;

use super::sent_requests::SentRequests;
use crate::{
    error::RequestError,
    redlock::{
        node::Node,
        node_call::NodeCall,
        nodes::{Nodes, majority},
        round::{ReplySender, STRAGGLER_WAIT},
    },
};

/// Clean-ups that are retried at one node at a time, see [`RetryPolicy`].
pub(crate) const RETRIED_CLEAN_UPS_MAX: usize = 256;

/// How often a failed request is retried while its key may exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    Always,
    /// Not at all while [`RETRIED_CLEAN_UPS_MAX`] other clean-ups are retried at the node.
    Bounded,
}

/// How far the removal is at one node.
#[derive(Clone, Debug)]
enum NodeProgress {
    Pending,
    /// No key of the attempt is there.
    Done,
    /// Nothing was sent there, but the node has not confirmed that it has no key.
    Untouched,
    /// The last try failed.
    Failed(RequestError),
}

/// The removal of an attempt, under way.
#[derive(Clone, Debug)]
pub(super) struct Removal {
    nodes: Nodes,
    /// By then all keys have expired: nobody has renewed them since the removal began.
    keys_expired_at: Instant,
    progress: watch::Receiver<Vec<NodeProgress>>,
}

impl Removal {
    /// Starts the removal, at each node after earlier requests are settled. `lifetime`: how long a key lives without a
    /// renewal.
    pub(super) fn begin(
        nodes: &Nodes,
        request: NodeCall,
        sent: &Arc<SentRequests>,
        retries: RetryPolicy,
        lifetime: Duration,
    ) -> Self {
        sent.end();
        let (report, progress) = watch::channel(vec![NodeProgress::Pending; nodes.count()]);
        let keys_expired_at = Instant::now() + lease::quarantine(lifetime);
        let removal = RemovalTask { request, limit: nodes.limit, until: keys_expired_at, retries };
        let task = Arc::new((removal, report, Arc::clone(sent)));
        let round = nodes.at_all(|number, node, _: ReplySender<()>| {
            let task = Arc::clone(&task);
            async move {
                let (removal, report, sent) = &*task;
                let set_progress = |new| set_progress(report, number, new);
                sent.settled(number).await;
                if sent.is_touched(number) {
                    removal.run(&node, set_progress).await;
                } else if sent.is_refused(number) {
                    set_progress(NodeProgress::Done);
                } else {
                    set_progress(NodeProgress::Untouched);
                }
            }
        });
        round.in_background();
        Self { nodes: nodes.clone(), keys_expired_at, progress }
    }

    /// Returns whether all keys must have expired more than `ago` ago, confirmed or not.
    pub(super) fn is_expired_since(&self, ago: Duration) -> bool {
        Instant::now() > self.keys_expired_at + ago
    }

    /// Waits until a majority has confirmed the removal, and [`STRAGGLER_WAIT`] for the rest.
    pub(super) async fn confirmed(&self) -> Result<(), RequestError> {
        let mut progress = self.progress.clone();
        let majority = self.nodes.majority();
        let count = |nodes: &[NodeProgress], is: fn(&NodeProgress) -> bool| {
            nodes.iter().filter(|one| is(one)).count()
        };
        let is_confirmed = |nodes: &[NodeProgress]| count(nodes, is_done) >= majority;
        let is_complete = |nodes: &[NodeProgress]| count(nodes, is_pending) == 0;
        let decided = progress.wait_for(|nodes| is_confirmed(nodes) || is_complete(nodes)).await;
        let (is_confirmed, is_complete) =
            decided.map_or((false, true), |nodes| (is_confirmed(&nodes), is_complete(&nodes)));
        if is_confirmed {
            if !is_complete {
                // The other nodes are retried in the background.
                let all = progress.wait_for(|nodes| count(nodes, is_pending) == 0);
                let _ = timeout_at(Instant::now() + STRAGGLER_WAIT, all).await;
            }
            return Ok(());
        }
        let nodes = self.progress.borrow().clone();
        let faults = nodes.into_iter().enumerate().filter_map(|(number, one)| match one {
            NodeProgress::Failed(fault) => Some((number, Some(fault))),
            _ => None,
        });
        Err(self.nodes.no_majority(&faults.collect::<Vec<_>>()))
    }
}

/// Wakes the waiter only when it has something to decide.
fn set_progress(report: &watch::Sender<Vec<NodeProgress>>, node: usize, new: NodeProgress) {
    report.send_if_modified(|progress| {
        progress.iter_mut().skip(node).take(1).for_each(|slot| *slot = new.clone());
        let count = |is: fn(&NodeProgress) -> bool| progress.iter().filter(|one| is(one)).count();
        count(is_done) == majority(progress.len()) || count(is_pending) == 0
    });
}

fn is_done(progress: &NodeProgress) -> bool {
    matches!(progress, NodeProgress::Done)
}

fn is_pending(progress: &NodeProgress) -> bool {
    matches!(progress, NodeProgress::Pending)
}

/// Sends the removal to single nodes.
struct RemovalTask {
    request: NodeCall,
    limit: Duration,
    /// The request is retried until then.
    until: Instant,
    retries: RetryPolicy,
}

impl RemovalTask {
    /// Removes the attempt at one node.
    async fn run(&self, node: &Node, set_progress: impl Fn(NodeProgress)) {
        match node.run(self.limit, &self.request).await {
            Ok(_) => set_progress(NodeProgress::Done),
            Err(fault) => Box::pin(self.retry(node, fault, set_progress)).await,
        }
    }

    /// Retries the removal that has failed.
    async fn retry(&self, node: &Node, fault: RequestError, set_progress: impl Fn(NodeProgress)) {
        let (mut pauses, mut permit, mut answer) = (retry_pauses(), None, Err(fault));
        loop {
            match answer {
                Ok(_) => return set_progress(NodeProgress::Done),
                Err(fault) => {
                    debug!(?fault, node = node.name(), "not removed yet");
                    let is_transient = fault.is_transient();
                    set_progress(NodeProgress::Failed(fault));
                    if !is_transient || Instant::now() > self.until {
                        return;
                    }
                }
            }
            if self.retries == RetryPolicy::Bounded && permit.is_none() {
                permit = node.clean_up_retries.try_acquire().ok();
                if permit.is_none() {
                    return debug!(node = node.name(), "not retried: a key that is left expires");
                }
            }
            pauses.wait().await;
            answer = node.run(self.limit, &self.request).await;
        }
    }
}

/// Removes a key that a node may have set after the attempt's removal.
pub(super) async fn clean_up_late(node: &Node, limit: Duration, request: NodeCall, lifetime: Duration) {
    let until = Instant::now() + lease::quarantine(lifetime);
    RemovalTask { request, limit, until, retries: RetryPolicy::Bounded }.run(node, |_| {}).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_conformance::direct::until;

    use super::*;
    use crate::redlock::{config::RedlockConfig, hints::Hints};
    use crate::{
        RedisConfig,
        redlock::wire::look,
        tests::scripted::{Answer, ScriptedServer, greeting},
        topology::{Address, Connector, Dialer, Login, Password, Topology},
    };

    /// A lifetime longer than any test.
    const LIFETIME: Duration = Duration::from_secs(60);

    /// Addresses where no server listens.
    fn nodes() -> Nodes {
        let unreachable = RedisConfig::new(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]).unwrap();
        RedlockConfig::new(unreachable).unwrap().connect(Duration::from_secs(1))
    }

    fn nodes_at(topology: Topology, login: Login) -> Nodes {
        let dialer = Dialer { login, tls: None, timeout: LIFETIME };
        let connector = Connector { topology, dialer, sentinel_login: Login::default(), cluster_retries: 0 };
        Nodes::connect(&connector, LIFETIME, Hints::default())
    }

    /// What was sent for an attempt that may have keys at all nodes.
    fn touched(nodes: &Nodes) -> Arc<SentRequests> {
        let sent = Arc::new(SentRequests::default());
        (0..nodes.count()).for_each(|node| {
            sent.mark_touched(node);
            drop(sent.settle_on_drop(node));
        });
        sent
    }

    /// Removes `count` attempts that may have keys at all nodes. Returns how many tasks continue to retry.
    async fn retry_tasks(nodes: &Nodes, retries: RetryPolicy, count: usize) -> usize {
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = alive();
        for _ in 0..count {
            let removal = Removal::begin(nodes, look(), &touched(nodes), retries, LIFETIME);
            removal.confirmed().await.unwrap_err();
        }
        // A task ends a moment after it has reported its progress.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        alive() - before
    }

    #[tokio::test]
    async fn failed_clean_ups_are_retried_up_to_a_limit_and_releases_always() {
        let (nodes, most) = (nodes(), RETRIED_CLEAN_UPS_MAX);
        assert_eq!(retry_tasks(&nodes, RetryPolicy::Bounded, most + 50).await, most);
        assert_eq!(retry_tasks(&nodes, RetryPolicy::Bounded, 10).await, 0, "the limit is the node's");
        assert_eq!(retry_tasks(&nodes, RetryPolicy::Always, 10).await, 10);
    }

    /// The nodes would refuse each of them until the keys have expired.
    #[tokio::test]
    async fn refused_removal_is_not_retried() {
        let addresses = (0..3).map(|node| Address::Unix(format!("/nonexistent/{node}").into())).collect();
        let login = Login { password: Some(Password::File("/nonexistent".into())), ..Login::default() };
        let nodes = nodes_at(Topology::Replicas(addresses), login);
        assert_eq!(retry_tasks(&nodes, RetryPolicy::Always, 10).await, 0);
    }

    /// A caller that waits again would get the earlier error for ever.
    #[tokio::test]
    async fn removal_is_confirmed_when_it_is_repeated() {
        let tries = AtomicUsize::new(0);
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| match &*words[0] {
                "EVALSHA" if tries.fetch_add(1, SeqCst) == 0 => Answer::Text("-BUSY a script\r\n".to_owned()),
                "EVALSHA" => Answer::Text(":1\r\n".to_owned()),
                _ => greeting(words),
            }
        });
        let nodes = nodes_at(Topology::Single(server.await.address), Login::default());
        let removal = Removal::begin(&nodes, look(), &touched(&nodes), RetryPolicy::Always, LIFETIME);
        until("it is confirmed", async || removal.confirmed().await.is_ok()).await;
    }

    #[tokio::test]
    async fn clean_up_of_a_late_grant_is_retried() {
        let (nodes, limit) = (nodes(), Duration::from_secs(1));
        let node = nodes.get(0).unwrap();
        let ended = timeout_at(Instant::now() + limit, clean_up_late(&node, limit, look(), LIFETIME)).await;
        assert!(ended.is_err(), "the node cannot be reached, and it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn removal_is_not_confirmed_by_one_node() {
        let pending = NodeProgress::Pending;
        let (report, progress) = watch::channel(vec![NodeProgress::Done, pending.clone(), pending]);
        let removal = Removal { nodes: nodes(), keys_expired_at: Instant::now() + LIFETIME, progress };
        let confirmed = removal.confirmed();
        tokio::pin!(confirmed);
        let early = tokio::time::timeout(LIFETIME / 2, confirmed.as_mut()).await;
        assert!(early.is_err(), "{early:?}");
        report.send_modify(|progress| progress[2] = NodeProgress::Done);
        confirmed.await.unwrap();
    }

    /// A caller that releases and asks again should find no key of its own, but not wait for a node that is away.
    #[tokio::test(start_paused = true)]
    async fn confirmed_removal_gives_the_other_nodes_a_moment() {
        for is_answered in [true, false] {
            let done = NodeProgress::Done;
            let (report, progress) = watch::channel(vec![done.clone(), done.clone(), NodeProgress::Pending]);
            let removal = Removal { nodes: nodes(), keys_expired_at: Instant::now() + LIFETIME, progress };
            let (start, half) = (Instant::now(), STRAGGLER_WAIT / 2);
            let answer = async {
                tokio::time::sleep(half).await;
                if is_answered {
                    report.send_modify(|progress| progress[2] = done);
                }
            };
            let confirmed = async {
                removal.confirmed().await.unwrap();
                start.elapsed()
            };
            let (took, ()) = tokio::join!(confirmed, answer);
            let bounds = if is_answered { half..STRAGGLER_WAIT } else { STRAGGLER_WAIT..2 * STRAGGLER_WAIT };
            assert!(bounds.contains(&took), "{took:?}");
        }
    }

    /// The clocks of clients and nodes differ in rate.
    #[tokio::test(start_paused = true)]
    async fn removal_is_retried_for_longer_than_its_keys_live() {
        let sent = Arc::new(SentRequests::default());
        let removal = Removal::begin(&nodes(), look(), &sent, RetryPolicy::Always, LIFETIME);
        tokio::time::advance(lease::quarantine(LIFETIME)).await;
        assert!(!removal.is_expired_since(Duration::ZERO) && lease::quarantine(LIFETIME) > LIFETIME);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(removal.is_expired_since(Duration::ZERO));
    }

    #[test]
    fn waiter_is_woken_by_the_majority_and_by_the_last_node() {
        let (report, mut progress) = watch::channel(vec![NodeProgress::Pending; 5]);
        let woken = [0, 1, 2, 3, 4].map(|node| {
            set_progress(&report, node, NodeProgress::Done);
            let is_woken = progress.has_changed().unwrap();
            progress.mark_unchanged();
            is_woken
        });
        assert_eq!(woken, [false, false, true, false, true]);
    }

    /// Removes an attempt after `done` has recorded, for each node, what was sent there.
    async fn end_after(done: impl Fn(&SentRequests, usize)) -> Result<(), RequestError> {
        let nodes = nodes();
        let sent = Arc::new(SentRequests::default());
        (0..nodes.count()).for_each(|node| {
            done(&sent, node);
            drop(sent.settle_on_drop(node));
        });
        Removal::begin(&nodes, look(), &sent, RetryPolicy::Bounded, LIFETIME).confirmed().await
    }

    #[tokio::test]
    async fn nothing_is_removed_where_nothing_was_sent() {
        let fault = end_after(|_, _| {}).await.unwrap_err();
        assert!(fault.message().contains("(0 of 3 failed"), "{fault:?}");
    }

    #[tokio::test]
    async fn nothing_is_removed_where_the_ask_was_refused() {
        end_after(SentRequests::mark_refused).await.unwrap();
    }

    /// An earlier copy of the request may be executed after the refusal.
    #[tokio::test]
    async fn refused_second_copy_of_an_ask_is_removed() {
        let fault = end_after(|sent, node| {
            sent.mark_touched(node);
            sent.mark_refused(node);
        })
        .await
        .unwrap_err();
        assert!(fault.message().contains("(3 of 3 failed"), "{fault:?}");
    }
}
