//! All nodes of a session, and requests to all of them at once.

use std::{sync::Arc, time::Duration};

use lockkit_core::ErrorKind;
use redis::Value;

use super::{
    hints::Hints,
    membership::Members,
    node::{Node, name_of},
    node_call::NodeCall,
    round::{ReplySender, Round},
};
use crate::{
    error::{Effect, RequestError},
    topology::{Connector, Topology},
};

/// Returns how many nodes are more than half.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The number of a node that did not take part, and why; `None` if it has lost its data.
pub(super) type NodeFault = (usize, Option<RequestError>);

/// The nodes of a session. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    all: Arc<[Arc<Node>]>,
    pub(super) hints: Arc<Hints>,
    pub(super) members: Arc<Members>,
    /// Time limit of one request.
    pub(super) limit: Duration,
}

impl Nodes {
    /// Starts connecting to each of them.
    pub(super) fn connect(connector: &Connector, limit: Duration, hints: Hints) -> Self {
        let hints = Arc::new(hints);
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

    /// Returns the name of this node.
    pub(super) fn name(&self, number: usize) -> &str {
        self.all.get(number).map_or("", |node| node.name())
    }

    /// Runs `work` at each of these nodes. It continues in the background when the result is dropped.
    pub(super) fn at<T, F>(
        &self,
        numbers: impl IntoIterator<Item = usize>,
        work: impl Fn(usize, Arc<Node>, ReplySender<T>) -> F,
    ) -> Round<T, F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Round::new(numbers.into_iter().filter_map(|number| Some((number, self.get(number)?))), work)
    }

    /// Runs `work` at every node.
    pub(super) fn at_all<T, F>(&self, work: impl Fn(usize, Arc<Node>, ReplySender<T>) -> F) -> Round<T, F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.at(0..self.count(), work)
    }

    /// Sends a request to every node. `parse` gets the number of a node and its answer, even if the round was dropped
    /// before that came.
    pub(super) fn ask<T, P>(
        &self,
        call: NodeCall,
        parse: P,
    ) -> Round<Result<T, RequestError>, impl Future<Output = ()> + Send + use<T, P>>
    where
        T: Send + 'static,
        P: Fn(usize, Value) -> Result<T, RequestError> + Send + Sync + 'static,
    {
        self.ask_some((0..self.count()).collect(), call, parse)
    }

    /// Sends a request to these nodes, as [`ask`](Self::ask) does to all.
    pub(super) fn ask_some<T, P>(
        &self,
        numbers: Vec<usize>,
        call: NodeCall,
        parse: P,
    ) -> Round<Result<T, RequestError>, impl Future<Output = ()> + Send + use<T, P>>
    where
        T: Send + 'static,
        P: Fn(usize, Value) -> Result<T, RequestError> + Send + Sync + 'static,
    {
        let (limit, shared) = (self.limit, Arc::new((call, parse)));
        self.at(numbers, move |number, node, reply| {
            let shared = Arc::clone(&shared);
            async move {
                let (call, parse) = &*shared;
                reply.send(node.run(limit, call).await.and_then(|answer| parse(number, answer)));
            }
        })
    }

    /// Subscribes to the channels of a lock at every node if a claim waits for it; otherwise unsubscribes. Called when
    /// its first waiter has come or its last one has left.
    pub(super) async fn follow_waiters(&self, lock: &str) {
        let mut waits = self.hints.has_waiters(lock);
        loop {
            self.set_subscription(lock, waits).await;
            // Another task may have sent its request meanwhile, which this one has overtaken.
            let sent = std::mem::replace(&mut waits, self.hints.has_waiters(lock));
            if sent == waits {
                return;
            }
        }
    }

    /// Subscribes to the channels of a lock at every node, or unsubscribes.
    async fn set_subscription(&self, lock: &str, subscribed: bool) {
        let (limit, channels) = (self.limit, Arc::new(self.hints.channels_of(lock)));
        let mut round = self.at_all(|_, node, reply| {
            let channels = Arc::clone(&channels);
            async move {
                node.set_subscription(limit, &*channels, subscribed).await;
                reply.send(());
            }
        });
        // A majority is not needed: the nodes that answer in time are enough.
        while round.next(true).await.is_some() {}
    }

    /// Returns the error of a majority that granted, but whose keys may have expired.
    pub(super) fn too_slow(&self) -> RequestError {
        RequestError::new(
            Effect::Busy,
            ErrorKind::Unavailable,
            "the nodes replied only after their keys may have expired",
        )
    }

    /// Returns the error without a majority, which names each node that did not take part.
    pub(super) fn no_majority(&self, faults: &[NodeFault]) -> RequestError {
        self.summary("no majority of the nodes", self.majority(), faults)
    }

    /// Returns the error if not all nodes took part.
    pub(super) fn not_all(&self, faults: &[NodeFault]) -> RequestError {
        self.summary("every node is needed", self.count(), faults)
    }

    /// Names each node that did not take part. The error is transient, unless too few nodes are left that did not
    /// refuse for good.
    fn summary(&self, what: &str, needed: usize, faults: &[NodeFault]) -> RequestError {
        let mut refusals: Vec<&RequestError> = Vec::new();
        let parts: Vec<String> = faults
            .iter()
            .map(|(number, fault)| {
                refusals.extend(fault.as_ref().filter(|fault| !fault.is_transient()));
                let name = self.name(*number);
                let why =
                    fault.as_ref().map_or("has lost its data, and does not count yet", RequestError::message);
                // Faults of connecting name the server already.
                if why.starts_with(name) { why.to_owned() } else { format!("{name}: {why}") }
            })
            .collect();
        let is_final = self.count() - refusals.len() < needed;
        let (effect, kind) = match refusals.first() {
            Some(fault) if is_final => (Effect::Refused, fault.kind()),
            _ => (Effect::Busy, ErrorKind::Unavailable),
        };
        RequestError::new(
            effect,
            kind,
            format!("{what} ({} of {} failed: {})", parts.len(), self.count(), parts.join("; ")),
        )
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use lockkit_conformance::direct::HANG;
    use lockkit_testbed::{Direction, Flow, Proxy, Redis};

    use super::*;
    use crate::{
        RedisConfig,
        redlock::{RedlockConfig, wire::look},
    };

    fn nodes_at(addresses: &[String], limit: Duration) -> Nodes {
        RedlockConfig::new(RedisConfig::new(addresses).unwrap()).unwrap().connect(limit)
    }

    /// A waiter may wait for a majority that a minority cannot prevent.
    #[test]
    fn refusals_are_final_once_too_few_nodes_are_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let addresses = [1, 2, 3].map(|port| format!("127.0.0.1:{port}"));
        let nodes = nodes_at(&addresses, Duration::from_secs(1));
        let (refused, silent) =
            (RequestError::new(Effect::Refused, ErrorKind::Denied, "NOPERM"), RequestError::no_reply());
        for (faults, kind) in [
            ([None, Some(&refused), Some(&silent)], ErrorKind::Unavailable),
            ([Some(&silent), Some(&refused), Some(&refused)], ErrorKind::Denied),
        ] {
            let faults: Vec<NodeFault> =
                faults.map(Option::<&RequestError>::cloned).into_iter().enumerate().collect();
            let fault = nodes.no_majority(&faults);
            assert_eq!(
                (fault.kind(), fault.is_transient()),
                (kind, kind == ErrorKind::Unavailable),
                "{fault:?}"
            );
        }
        assert_eq!(nodes.not_all(&[(1, Some(refused))]).kind(), ErrorKind::Denied);
    }

    /// Some faults name their server already.
    #[tokio::test]
    async fn error_names_each_node_once() {
        let addresses = [1, 2, 3].map(|port| format!("127.0.0.1:{port}"));
        let nodes = nodes_at(&addresses, Duration::from_secs(1));
        let named = RequestError::no_reply().at(&addresses[0]);
        let fault = nodes.no_majority(&[(0, Some(named)), (1, Some(RequestError::no_reply())), (2, None)]);
        for address in &addresses {
            assert_eq!(fault.message().matches(&**address).count(), 1, "{fault:?}");
        }
    }

    /// The session would rely on its polls for as long as a claim waits.
    #[tokio::test(flavor = "multi_thread")]
    async fn waiter_that_comes_while_the_last_one_leaves_is_subscribed() {
        let redis = Redis::start().unwrap();
        let proxies = [(); 3].map(|()| Proxy::start_redis(redis.endpoint()).unwrap());
        let nodes = nodes_at(&proxies.each_ref().map(Proxy::endpoint), HANG);
        for number in 0..3 {
            nodes.get(number).unwrap().run(HANG, &look()).await.unwrap();
        }
        let mut leaving = std::pin::pin!(nodes.follow_waiters("x"));
        assert!(leaving.as_mut().now_or_never().is_none(), "it has sent a request");
        nodes.hints.add_waiter("x");
        tokio::time::timeout(HANG, leaving).await.unwrap();
        assert_eq!(redis.cli(&["PUBSUB", "CHANNELS"]).unwrap().list().len(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn subscription_waits_for_no_silent_node() {
        let redis = Redis::start().unwrap();
        let proxies = [(); 3].map(|()| Proxy::start_redis(redis.endpoint()).unwrap());
        let nodes = nodes_at(&proxies.each_ref().map(Proxy::endpoint), 10 * HANG);
        for number in 0..3 {
            nodes.get(number).unwrap().run(HANG, &look()).await.unwrap();
        }
        proxies[1].set(Direction::Replies, Flow::Hold);
        tokio::time::timeout(HANG, nodes.set_subscription("x", true)).await.expect("the others are enough");
        assert_eq!(redis.cli(&["PUBSUB", "CHANNELS"]).unwrap().list().len(), 2);
    }
}
