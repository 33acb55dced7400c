//! All nodes together, and one question to each of them at the same moment.

use std::{sync::Arc, time::Duration};

use lockkit_core::ErrorKind;
use tokio::{sync::mpsc, time::Instant};

use super::{
    hints::Hints,
    members::Members,
    node::{Node, name_of},
    tally::majority,
};
use crate::{
    error::{Effect, Fault},
    topology::{Connector, Topology},
};

/// How long a majority waits for the rest before it goes on without it: a node that stands still costs no more than this.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);

/// The nodes of a session. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    all: Arc<[Arc<Node>]>,
    pub(super) hints: Arc<Hints>,
    pub(super) members: Arc<Members>,
    /// Longest time for one request.
    pub(super) limit: Duration,
}

impl Nodes {
    /// Begins to connect to each of them.
    pub(super) fn connect(connector: &Connector, limit: Duration) -> Self {
        let hints = Arc::<Hints>::default();
        let addresses = match &connector.topology {
            Topology::Single(address) => std::slice::from_ref(address),
            Topology::Replicas(addresses) | Topology::Cluster(addresses) => addresses,
            Topology::Sentinel(_) => &[],
        };
        let members = Arc::new(Members::new(addresses.iter().map(name_of).collect()));
        let node = |(number, address): (usize, &_)| {
            let (hints, members) = (Arc::clone(&hints), Arc::clone(&members));
            Arc::new(Node::connect(number, Clone::clone(address), connector.dialer.clone(), hints, members))
        };
        let all = addresses.iter().enumerate().map(node).collect();
        Self { all, hints, members, limit }
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.all.len())
    }

    pub(super) fn get(&self, number: usize) -> Option<Arc<Node>> {
        self.all.get(number).cloned()
    }

    /// What this node is called.
    pub(super) fn name(&self, number: usize) -> &str {
        self.all.get(number).map_or("", |node| node.name())
    }

    /// Does this at each of these nodes, in tasks that go on when nobody waits for them any more.
    pub(super) fn at<T, F>(
        &self,
        numbers: impl IntoIterator<Item = usize>,
        work: impl Fn(usize, Arc<Node>, Tell<T>) -> F,
    ) -> Round<T>
    where
        T: Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (answers, received) = mpsc::channel(self.count());
        for number in numbers {
            if let Some(node) = self.get(number) {
                tokio::spawn(work(number, node, Tell { number, answers: answers.clone() }));
            }
        }
        Round { received, until: None }
    }

    /// Does this at every node.
    pub(super) fn at_all<T, F>(&self, work: impl Fn(usize, Arc<Node>, Tell<T>) -> F) -> Round<T>
    where
        T: Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.at(0..self.count(), work)
    }

    /// Listens to a channel at every node, or no more.
    pub(super) async fn listen(&self, channel: &str, listens: bool) {
        let limit = self.limit;
        let mut round = self.at_all(|_, node, tell| {
            let channel = channel.to_owned();
            async move {
                node.listen(limit, &channel, listens).await;
                tell.tell(());
            }
        });
        // The nodes that have said so are enough.
        while round.next(true).await.is_some() {}
    }

    /// What nodes have answered cannot be told apart.
    pub(super) fn moved(&self) -> Fault {
        Fault::new(Effect::Busy, ErrorKind::Unavailable, "nodes have changed their addresses meanwhile")
    }

    /// A majority said yes, but not before its keys may end.
    pub(super) fn too_slow(&self) -> Fault {
        Fault::new(
            Effect::Busy,
            ErrorKind::Unavailable,
            "the nodes took longer to answer than their keys live",
        )
    }

    /// Why there is no majority: names each node that was of no use.
    pub(super) fn no_majority<'a>(&self, faults: impl Iterator<Item = (usize, Option<&'a Fault>)>) -> Fault {
        self.summary("no majority of the nodes", self.majority(), faults)
    }

    /// Why not all nodes have done it.
    pub(super) fn not_all<'a>(&self, faults: impl Iterator<Item = (usize, &'a Fault)>) -> Fault {
        let faults = faults.map(|(number, fault)| (number, Some(fault)));
        self.summary("every node is needed", self.count(), faults)
    }

    /// Names each node that was of no use. It passes by itself unless so many refuse for good that too few are left.
    fn summary<'a>(
        &self,
        what: &str,
        needed: usize,
        faults: impl Iterator<Item = (usize, Option<&'a Fault>)>,
    ) -> Fault {
        let mut refusals: Vec<&Fault> = Vec::new();
        let parts: Vec<String> = faults
            .map(|(number, fault)| {
                refusals.extend(fault.filter(|fault| !fault.may_pass()));
                let name = self.name(number);
                let why = fault.map_or("has lost its data, and does not count yet", Fault::message);
                format!("{name}: {why}")
            })
            .collect();
        let is_final = self.count() - refusals.len() < needed;
        let (effect, kind) = match refusals.first() {
            Some(fault) if is_final => (Effect::Refused, fault.kind()),
            _ => (Effect::Busy, ErrorKind::Unavailable),
        };
        Fault::new(
            effect,
            kind,
            format!("{what} ({} of {} failed: {})", parts.len(), self.count(), parts.join("; ")),
        )
    }
}

/// Where a node's answer is awaited.
#[derive(Debug)]
pub(super) struct Tell<T> {
    number: usize,
    answers: mpsc::Sender<(usize, T)>,
}

impl<T> Tell<T> {
    /// Tells it, if anybody still wants to know.
    pub(super) fn tell(self, answer: T) {
        // There is room for one answer of each node.
        let _ = self.answers.try_send((self.number, answer));
    }
}

/// The answers to one question.
#[derive(Debug)]
pub(super) struct Round<T> {
    received: mpsc::Receiver<(usize, T)>,
    /// Until when the rest may still come in.
    until: Option<Instant>,
}

impl<T> Round<T> {
    /// The next answer; `None` when all have answered. Once there is enough, the rest has a moment left.
    pub(super) async fn next(&mut self, is_enough: bool) -> Option<(usize, T)> {
        if !is_enough {
            return self.received.recv().await;
        }
        let until = *self.until.get_or_insert_with(|| Instant::now() + PATIENCE);
        tokio::time::timeout_at(until, self.received.recv()).await.ok().flatten()
    }
}
