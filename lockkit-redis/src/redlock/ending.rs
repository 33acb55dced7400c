//! The end of a claim at all nodes: repeated at each until it is answered.
//!
//! * A node does not answer: the others' answers are enough, the request is repeated in the background until the key must
//!   have ended with its ttl.
//! * No majority answers: whoever waits is told so, and may wait again; nothing is sent twice for that.

use std::{sync::Arc, time::Duration};

use lockkit_core::{backend::retry_pauses, limits::RETRY_PAUSE_MAX};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    node::Node,
    nodes::{Nodes, Round},
};
use crate::{error::Fault, scripts::Call};

/// How far it is at one node.
#[derive(Clone, Debug)]
enum Progress {
    Open,
    Done,
    /// The last try has failed.
    Failed(Fault),
}

/// The end of a claim, under way.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    nodes: Nodes,
    progress: watch::Receiver<Vec<Progress>>,
}

impl Ending {
    /// Begins it, at each node `behind` what it was asked before. `lifetime`: how long a key can live that nobody renews.
    pub(super) fn begin(
        nodes: &Nodes,
        call: Call,
        behind: &Arc<[CancellationToken]>,
        lifetime: Duration,
    ) -> Self {
        let (report, progress) = watch::channel(vec![Progress::Open; nodes.count()]);
        let (report, call) = (Arc::new(report), Arc::new(call));
        let until = Instant::now() + lifetime;
        let limit = nodes.limit;
        let _: Round<()> = nodes.at_all(|number, node, _| {
            let (report, call) = (Arc::clone(&report), Arc::clone(&call));
            let behind = behind.get(number).cloned();
            async move {
                if let Some(behind) = behind {
                    behind.cancelled().await;
                }
                let note = |how: Progress| {
                    report.send_modify(|progress| {
                        progress.iter_mut().skip(number).take(1).for_each(|slot| *slot = how.clone())
                    });
                };
                end_at(&node, limit, &call, until, note).await;
            }
        });
        Self { nodes: nodes.clone(), progress }
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

/// Ends a claim at one node.
async fn end_at(node: &Node, limit: Duration, call: &Call, until: Instant, note: impl Fn(Progress)) {
    let mut pauses = retry_pauses();
    loop {
        match node.run(limit, call).await {
            Ok(_) => return note(Progress::Done),
            Err(fault) => {
                debug!(?fault, node = node.name(), "not ended yet");
                let may_pass = fault.may_pass();
                note(Progress::Failed(fault));
                if !may_pass || Instant::now() > until {
                    return;
                }
            }
        }
        tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
    }
}

/// Ends what has come into being at one node after the claim's end.
pub(super) async fn end_late(node: &Node, limit: Duration, call: &Call, lifetime: Duration) {
    end_at(node, limit, call, Instant::now() + lifetime, |_| {}).await;
}
