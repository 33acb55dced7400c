//! The end of a claim at all nodes where anything of it may be: repeated at each until it is answered.
//!
//! * A node does not answer: the others' answers are enough, the request is repeated in the background until the key must
//!   have ended with its ttl.
//! * A node was never sent anything for the claim: nothing is sent now. A waiter tries again and again, for as long as a
//!   node may be away.
//! * A node has answered that somebody else has the lock, and nothing else was sent there: nothing is sent now either.
//!   That is what most answers to waiters are.
//! * Many clean-ups are repeated at a node: a further one that fails is not. What it leaves, if anything, is a key that
//!   nobody renews, which ends with its ttl. Releases are always repeated: they also raise the counter.
//! * No majority answers: whoever waits is told so, and may wait again; nothing is sent twice for that.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{backend::retry_pauses, limits::RETRY_PAUSE_MAX};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use super::{
    calls::Request,
    node::Node,
    nodes::{Nodes, Round},
    validity,
};
use crate::error::Fault;

/// Clean-ups that are repeated at one node at a time, see [`Repeats`].
pub(super) const REPEATED_CLEAN_UPS_MAX: usize = 256;

/// What was sent for a claim.
#[derive(Debug)]
pub(super) struct Trace {
    /// The claim has ended, or what it has won.
    pub(super) over: AtomicBool,
    /// By node: something may be there.
    touched: Box<[AtomicBool]>,
    /// By node: it has answered a request that it has done nothing.
    refused: Box<[AtomicBool]>,
    /// By node: nobody waits for its answer any more. What ends the claim is sent behind that, not beside it.
    settled: Box<[CancellationToken]>,
}

impl Trace {
    pub(super) fn of(nodes: usize) -> Self {
        Self {
            over: AtomicBool::default(),
            touched: (0..nodes).map(|_| AtomicBool::default()).collect(),
            refused: (0..nodes).map(|_| AtomicBool::default()).collect(),
            settled: (0..nodes).map(|_| CancellationToken::new()).collect(),
        }
    }

    pub(super) fn touch(&self, node: usize) {
        self.touched.iter().skip(node).take(1).for_each(|touched| touched.store(true, SeqCst));
    }

    /// The node has done nothing. It counts only where no other request may have left anything: an earlier copy whose
    /// connection broke may be executed later.
    pub(super) fn refuse(&self, node: usize) {
        self.refused.iter().skip(node).take(1).for_each(|refused| refused.store(true, SeqCst));
    }

    fn is_refused(&self, node: usize) -> bool {
        self.refused.get(node).is_some_and(|refused| refused.load(SeqCst))
    }

    fn is_touched(&self, node: usize) -> bool {
        self.touched.get(node).is_none_or(|touched| touched.load(SeqCst))
    }

    /// Nobody waits for this node's answer once the value is dropped.
    pub(super) fn settles(&self, node: usize) -> DropGuard {
        self.settled.get(node).cloned().unwrap_or_default().drop_guard()
    }

    async fn settled(&self, node: usize) {
        if let Some(settled) = self.settled.get(node) {
            settled.cancelled().await;
        }
    }
}

/// How often a failed request is sent again while it is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    Always,
    /// Not at all beyond [`REPEATED_CLEAN_UPS_MAX`].
    Bounded,
}

/// How far it is at one node.
#[derive(Clone, Debug)]
enum Progress {
    Open,
    /// Nothing of it is there any more, or ever was.
    Done,
    /// Nothing was sent there, and the node has not said so.
    Untouched,
    /// The last try has failed.
    Failed(Fault),
}

/// The end of a claim, under way.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    nodes: Nodes,
    /// From then on no key is left of it: nobody has renewed any since it began.
    over: Instant,
    progress: watch::Receiver<Vec<Progress>>,
}

impl Ending {
    /// Begins it, at each node behind what it was asked before. `lifetime`: how long a key lives that nobody renews.
    pub(super) fn begin(
        nodes: &Nodes,
        request: Request,
        trace: &Arc<Trace>,
        repeats: Repeats,
        lifetime: Duration,
    ) -> Self {
        trace.over.store(true, SeqCst);
        let (report, progress) = watch::channel(vec![Progress::Open; nodes.count()]);
        let report = Arc::new(report);
        let over = Instant::now() + validity::quarantine(lifetime);
        let end = Arc::new(End { request, limit: nodes.limit, until: over, repeats });
        let _: Round<()> = nodes.at_all(|number, node, _| {
            let (report, end, trace) = (Arc::clone(&report), Arc::clone(&end), Arc::clone(trace));
            async move {
                let note = |how: Progress| {
                    report.send_modify(|progress| {
                        progress.iter_mut().skip(number).take(1).for_each(|slot| *slot = how.clone())
                    });
                };
                trace.settled(number).await;
                if trace.is_touched(number) {
                    end.at(&node, note).await;
                } else if trace.is_refused(number) {
                    note(Progress::Done);
                } else {
                    note(Progress::Untouched);
                }
            }
        });
        Self { nodes: nodes.clone(), over, progress }
    }

    /// Whether nothing can have been left of it for so long, whoever has confirmed that.
    pub(super) fn is_over_since(&self, ago: Duration) -> bool {
        Instant::now() > self.over + ago
    }

    /// Waits until a majority has confirmed it, and a moment for the rest.
    pub(super) async fn confirmed(&self) -> Result<(), Fault> {
        let mut progress = self.progress.clone();
        let majority = self.nodes.majority();
        let is =
            |how: &[Progress], wanted: fn(&Progress) -> bool| how.iter().filter(|one| wanted(one)).count();
        let done = |how: &[Progress]| is(how, |one| matches!(one, Progress::Done));
        let open = |how: &[Progress]| is(how, |one| matches!(one, Progress::Open));
        let decided = progress.wait_for(|how| done(how) >= majority || open(how) == 0).await;
        if decided.is_ok_and(|how| done(&how) >= majority) {
            let moment = Instant::now() + super::nodes::PATIENCE;
            // The rest goes on without us.
            let _ = timeout_at(moment, progress.wait_for(|how| open(how) == 0)).await;
            return Ok(());
        }
        let how = self.progress.borrow().clone();
        let faults = how.iter().enumerate().filter_map(|(number, one)| match one {
            Progress::Failed(fault) => Some((number, Some(fault))),
            _ => None,
        });
        Err(self.nodes.no_majority(faults))
    }
}

/// The request that ends a claim.
struct End {
    request: Request,
    limit: Duration,
    /// It is of use until then.
    until: Instant,
    repeats: Repeats,
}

impl End {
    /// Ends the claim at one node.
    async fn at(&self, node: &Node, note: impl Fn(Progress)) {
        let mut pauses = retry_pauses();
        let mut permit = None;
        loop {
            match node.run(self.limit, &self.request).await {
                Ok(_) => return note(Progress::Done),
                Err(fault) => {
                    debug!(?fault, node = node.name(), "not ended yet");
                    let may_pass = fault.may_pass();
                    note(Progress::Failed(fault));
                    if !may_pass || Instant::now() > self.until {
                        return;
                    }
                }
            }
            if self.repeats == Repeats::Bounded && permit.is_none() {
                permit = node.repeated.try_acquire().ok();
                if permit.is_none() {
                    return debug!(node = node.name(), "left to its ttl");
                }
            }
            tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
        }
    }
}

/// Ends what has come into being at one node after the claim's end.
pub(super) async fn end_late(node: &Node, limit: Duration, request: Request, lifetime: Duration) {
    let until = Instant::now() + validity::quarantine(lifetime);
    End { request, limit, until, repeats: Repeats::Bounded }.at(node, |_| {}).await;
}

#[cfg(test)]
mod tests {
    use super::{super::config::RedlockConfig, *};
    use crate::{RedisConfig, redlock::calls::look};

    /// Generous bound against hangs.
    const HANG: Duration = Duration::from_secs(60);

    /// Nodes at which nobody is.
    fn nodes() -> Nodes {
        let nowhere = RedisConfig::new(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]).unwrap();
        RedlockConfig::new(nowhere).unwrap().connect(Duration::from_secs(1))
    }

    /// Many ends of claims that may be at all nodes; the tasks that are left of them.
    async fn repeated(nodes: &Nodes, repeats: Repeats, count: usize) -> usize {
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = alive();
        for _ in 0..count {
            let trace = Arc::new(Trace::of(nodes.count()));
            (0..nodes.count()).for_each(|node| {
                trace.touch(node);
                drop(trace.settles(node));
            });
            let ending = Ending::begin(nodes, look(), &trace, repeats, HANG);
            ending.confirmed().await.unwrap_err();
        }
        // A task ends a moment after it has told how.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        alive() - before
    }

    #[tokio::test]
    async fn clean_ups_that_fail_are_repeated_up_to_a_limit_and_releases_always() {
        let (nodes, most) = (nodes(), REPEATED_CLEAN_UPS_MAX);
        assert_eq!(repeated(&nodes, Repeats::Bounded, most + 50).await, 3 * most);
        assert_eq!(repeated(&nodes, Repeats::Bounded, 10).await, 0, "the limit is the node's");
        assert_eq!(repeated(&nodes, Repeats::Always, 10).await, 30);
    }

    #[tokio::test]
    async fn where_nothing_was_sent_nothing_is_taken_back() {
        let nodes = nodes();
        let trace = Arc::new(Trace::of(nodes.count()));
        (0..nodes.count()).for_each(|node| drop(trace.settles(node)));
        let ending = Ending::begin(&nodes, look(), &trace, Repeats::Always, HANG);
        let fault = ending.confirmed().await.unwrap_err();
        assert!(fault.message().contains("(0 of 3 failed"), "{fault:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_that_has_confirmed_is_not_enough() {
        let open = Progress::Open;
        let (report, progress) = watch::channel(vec![Progress::Done, open.clone(), open]);
        let ending = Ending { nodes: nodes(), over: Instant::now() + HANG, progress };
        let confirmed = ending.confirmed();
        tokio::pin!(confirmed);
        let early = tokio::time::timeout(HANG / 2, confirmed.as_mut()).await;
        assert!(early.is_err(), "{early:?}");
        report.send_modify(|progress| progress[2] = Progress::Done);
        confirmed.await.unwrap();
    }

    /// How the end of a claim goes at nodes that were asked for nothing else than what each of these has done.
    async fn end_after(done: impl Fn(&Trace, usize)) -> Result<(), Fault> {
        let nodes = nodes();
        let trace = Arc::new(Trace::of(nodes.count()));
        (0..nodes.count()).for_each(|node| {
            done(&trace, node);
            drop(trace.settles(node));
        });
        Ending::begin(&nodes, look(), &trace, Repeats::Bounded, HANG).confirmed().await
    }

    #[tokio::test]
    async fn where_a_node_has_refused_nothing_is_taken_back() {
        end_after(Trace::refuse).await.unwrap();
    }

    /// An earlier copy of the request may be executed behind the refusal.
    #[tokio::test]
    async fn where_a_node_has_refused_a_second_copy_it_is_taken_back() {
        let fault = end_after(|trace, node| {
            trace.touch(node);
            trace.refuse(node);
        })
        .await
        .unwrap_err();
        assert!(fault.message().contains("(3 of 3 failed"), "{fault:?}");
    }
}
