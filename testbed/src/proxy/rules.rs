//! Which replies and messages a proxy drops or holds.

use std::{fmt, sync::Mutex};

use super::{
    grpc::Grpc,
    redis::Values,
    redis_group::Hosts,
    zookeeper::{Connection, Election},
};
use crate::sync::lock;

/// A kind of message to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A message with events for watchers, or with what was published to subscribers.
    Events,
    /// etcd: a single event that reports the deletion of a key; other events in the same message arrive.
    Deletions,
    /// etcd: the reply to a keep-alive of a lease.
    KeepAlives,
}

/// The protocol on the connections of a proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    /// Any; the proxy does not parse it.
    Any,
    /// gRPC without TLS, with etcd.
    Grpc,
    /// Redis and its clients, without TLS.
    Redis,
    /// ZooKeeper and its clients, without TLS.
    ZooKeeper,
    /// Between members of a ZooKeeper ensemble, to elect a leader.
    Election,
    /// Between the leader of a ZooKeeper ensemble and its followers.
    Quorum,
}

/// Which replies and messages are dropped or held, and how many were dropped.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// How many replies still arrive before one is swallowed.
    swallow_after: Option<u64>,
    /// How many of the next replies are swallowed.
    swallow_next: u64,
    /// Messages with events are held.
    pub(super) holds_events: bool,
    /// etcd: leases are removed from the keys in replies to reads.
    pub(super) hides_leases: bool,
    drops: Vec<DropRule>,
    /// ZooKeeper: the kind of requests that are refused, the error, and how many more are.
    refuses: Option<(i32, i32, u64)>,
    /// Requests are held from the first one that contains this text.
    hold_requests_from: Option<Vec<u8>>,
    /// Redis: the servers that clients must reach through other proxies.
    pub(super) hosts: Hosts,
    pub(super) dropped: u64,
    /// gRPC: calls that clients have begun.
    pub(super) calls: u64,
}

struct DropRule {
    message: Message,
    seen: u64,
    which: Box<dyn FnMut(u64) -> bool + Send>,
}

impl fmt::Debug for DropRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DropRule")
            .field("message", &self.message)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// Lets everything pass; the counters and the hosts stay.
    pub(super) fn clear(&mut self) {
        let hosts = std::mem::take(&mut self.hosts);
        *self = Self { hosts, dropped: self.dropped, calls: self.calls, ..Self::default() };
    }

    pub(super) fn swallow_reply(&mut self, nth: u64) {
        self.swallow_after = Some(nth.saturating_sub(1));
    }

    pub(super) fn swallow_next(&mut self, count: u64) {
        self.swallow_next = count;
    }

    pub(super) fn drop_messages(&mut self, message: Message, which: Box<dyn FnMut(u64) -> bool + Send>) {
        self.drops.push(DropRule { message, seen: 0, which });
    }

    pub(super) fn refuse_requests(&mut self, kind: i32, error: i32, count: u64) {
        self.refuses = Some((kind, error, count));
    }

    /// Counts a request; returns the error with which it is refused.
    pub(super) fn refuses(&mut self, kind: i32) -> Option<i32> {
        let (_, error, left) =
            self.refuses.as_mut().filter(|(refused, _, left)| *refused == kind && *left > 0)?;
        *left -= 1;
        self.dropped += 1;
        Some(*error)
    }

    pub(super) fn hold_requests_from(&mut self, bytes: &[u8]) {
        self.hold_requests_from = Some(bytes.to_vec());
    }

    /// Whether requests are held from these bytes on.
    pub(super) fn holds(&mut self, bytes: &[u8]) -> bool {
        self.hold_requests_from
            .take_if(|text| bytes.windows(text.len()).any(|window| window == text))
            .is_some()
    }

    /// Counts a reply; returns whether it passes.
    pub(super) fn lets_reply_pass(&mut self) -> bool {
        if let Some(more) = &mut self.swallow_after {
            match more.checked_sub(1) {
                Some(fewer) => *more = fewer,
                None => (self.swallow_after, self.swallow_next) = (None, self.swallow_next.max(1)),
            }
        }
        let Some(left) = self.swallow_next.checked_sub(1) else { return true };
        self.swallow_next = left;
        self.dropped += 1;
        false
    }

    /// Counts a message of this kind; returns whether it is dropped.
    pub(super) fn drops(&mut self, message: Message) -> bool {
        let mut is_dropped = false;
        for rule in self.drops.iter_mut().filter(|rule| rule.message == message) {
            rule.seen += 1;
            is_dropped |= (rule.which)(rule.seen);
        }
        self.dropped += u64::from(is_dropped);
        is_dropped
    }
}

/// What the proxy sends for bytes of the server.
#[derive(Debug, Default)]
pub(super) struct Forwarded {
    pub(super) to_client: Vec<u8>,
    /// For the server: flow control credit that the client would have sent.
    pub(super) credit: Vec<u8>,
}

/// Parses the bytes of one connection, and applies the rules to them.
#[derive(Debug)]
pub(super) struct Inspector(Mutex<Parser>);

#[derive(Debug)]
enum Parser {
    Any {
        /// The client was the last to send something.
        awaits_reply: bool,
    },
    Grpc(Grpc),
    Redis(Values),
    ZooKeeper(Connection),
    Election(Election),
}

impl Inspector {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self(Mutex::new(match protocol {
            Protocol::Any | Protocol::Quorum => Parser::Any { awaits_reply: false },
            Protocol::Grpc => Parser::Grpc(Grpc::default()),
            Protocol::Redis => Parser::Redis(Values::default()),
            Protocol::ZooKeeper => Parser::ZooKeeper(Connection::default()),
            Protocol::Election => Parser::Election(Election::default()),
        }))
    }

    /// Takes bytes of the client; returns what is forwarded now.
    pub(super) fn requests(&self, bytes: &[u8], rules: &mut Rules) -> Vec<u8> {
        match &mut *lock(&self.0) {
            Parser::Any { awaits_reply } => {
                *awaits_reply = true;
                bytes.to_vec()
            }
            Parser::Grpc(grpc) => grpc.requests(bytes, rules),
            Parser::Redis(_) => bytes.to_vec(),
            Parser::ZooKeeper(packets) => packets.requests(bytes, rules),
            Parser::Election(election) => election.requests(bytes),
        }
    }

    /// Takes bytes of the server; returns what is forwarded, or `None` if a reply is swallowed.
    pub(super) fn replies(&self, bytes: &[u8], rules: &mut Rules) -> Option<Forwarded> {
        match &mut *lock(&self.0) {
            Parser::Any { awaits_reply } => {
                let is_reply = std::mem::take(awaits_reply);
                (!is_reply || rules.lets_reply_pass())
                    .then(|| Forwarded { to_client: bytes.to_vec(), credit: Vec::new() })
            }
            Parser::Grpc(grpc) => grpc.replies(bytes, rules),
            Parser::Redis(values) => values.replies(bytes, rules),
            Parser::ZooKeeper(packets) => packets.replies(bytes, rules),
            Parser::Election(_) => Some(Forwarded { to_client: bytes.to_vec(), credit: Vec::new() }),
        }
    }

    /// Returns the held messages that may be forwarded now.
    pub(super) fn released(&self, rules: &Rules) -> Vec<u8> {
        match &mut *lock(&self.0) {
            Parser::Grpc(grpc) if !rules.holds_events => grpc.released(),
            Parser::Redis(values) => values.released(rules),
            Parser::ZooKeeper(packets) if !rules.holds_events => packets.released(),
            _ => Vec::new(),
        }
    }
}
