//! Which replies and messages do not arrive.

use std::{fmt, sync::Mutex};

use super::{
    grpc::Grpc,
    lock,
    redis::Values,
    zookeeper::{Election, Packets},
};

/// A kind of message that nobody asked for, on its way to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Every message that tells watchers of events, or subscribers what was published.
    Events,
    /// etcd: the single event that says that a key is gone; others in the same message arrive.
    Deletions,
    /// etcd: the answers to keep-alives of a lease.
    KeepAlives,
}

/// What is spoken on the connections of a proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Speech {
    /// Whatever it is.
    Any,
    /// gRPC without TLS, with etcd.
    Grpc,
    /// Redis and its clients, without TLS.
    Redis,
    /// ZooKeeper and its clients, without TLS.
    ZooKeeper,
    /// Members of a ZooKeeper ensemble that elect.
    Election,
    /// The leader of a ZooKeeper ensemble and those who follow it.
    Quorum,
}

/// Which replies and messages do not arrive, and how many did not.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// So many replies still arrive before one is swallowed.
    swallow_after: Option<u64>,
    /// So many of the next replies are swallowed.
    swallow_next: u64,
    /// Messages that tell of events are kept.
    pub(super) holds_events: bool,
    /// etcd: reads answer keys without their leases.
    pub(super) hides_leases: bool,
    drops: Vec<Drops>,
    /// Requests are held from the first that contains this.
    hold_at: Option<Vec<u8>>,
    pub(super) dropped: u64,
    /// gRPC: calls that clients have begun.
    pub(super) calls: u64,
}

struct Drops {
    message: Message,
    seen: u64,
    which: Box<dyn FnMut(u64) -> bool + Send>,
}

impl fmt::Debug for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drops")
            .field("message", &self.message)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// From now on everything arrives.
    pub(super) fn clear(&mut self) {
        *self = Self { dropped: self.dropped, calls: self.calls, ..Self::default() };
    }

    pub(super) fn swallow_reply(&mut self, nth: u64) {
        self.swallow_after = Some(nth.saturating_sub(1));
    }

    pub(super) fn swallow_next(&mut self, count: u64) {
        self.swallow_next = count;
    }

    pub(super) fn drop_messages(&mut self, message: Message, which: Box<dyn FnMut(u64) -> bool + Send>) {
        self.drops.push(Drops { message, seen: 0, which });
    }

    pub(super) fn hold_at(&mut self, text: &str) {
        self.hold_at = Some(text.as_bytes().to_vec());
    }

    /// Whether these bytes of a client are the first that must not pass.
    pub(super) fn holds(&mut self, bytes: &[u8]) -> bool {
        self.hold_at.take_if(|text| bytes.windows(text.len()).any(|window| window == text)).is_some()
    }

    /// Whether the reply that has come arrives.
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

    /// Whether a message of this kind, which has come, is dropped.
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

/// What comes of bytes of the server.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    pub(super) to_client: Vec<u8>,
    /// What the server is told in place of the client.
    pub(super) credit: Vec<u8>,
}

/// Looks into the bytes of one connection.
#[derive(Debug)]
pub(super) struct Inspector(Mutex<Protocol>);

#[derive(Debug)]
enum Protocol {
    Any {
        /// The client has said something since the server did.
        is_asked: bool,
    },
    Grpc(Grpc),
    Redis(Values),
    ZooKeeper(Packets),
    Election(Election),
}

impl Inspector {
    pub(super) fn new(speech: Speech) -> Self {
        Self(Mutex::new(match speech {
            Speech::Any | Speech::Quorum => Protocol::Any { is_asked: false },
            Speech::Grpc => Protocol::Grpc(Grpc::default()),
            Speech::Redis => Protocol::Redis(Values::default()),
            Speech::ZooKeeper => Protocol::ZooKeeper(Packets::default()),
            Speech::Election => Protocol::Election(Election::default()),
        }))
    }

    /// What of these bytes is sent on now.
    pub(super) fn requests(&self, bytes: &[u8], rules: &mut Rules) -> Vec<u8> {
        match &mut *lock(&self.0) {
            Protocol::Any { is_asked } => {
                *is_asked = true;
                bytes.to_vec()
            }
            Protocol::Grpc(grpc) => grpc.requests(bytes, rules),
            Protocol::Redis(_) => bytes.to_vec(),
            Protocol::ZooKeeper(_) => bytes.to_vec(),
            Protocol::Election(election) => election.requests(bytes),
        }
    }

    /// What of these bytes arrives; `None`: a reply is swallowed.
    pub(super) fn replies(&self, bytes: &[u8], rules: &mut Rules) -> Option<Arriving> {
        match &mut *lock(&self.0) {
            Protocol::Any { is_asked } => {
                let is_reply = std::mem::take(is_asked);
                (!is_reply || rules.lets_reply_pass())
                    .then(|| Arriving { to_client: bytes.to_vec(), credit: Vec::new() })
            }
            Protocol::Grpc(grpc) => grpc.replies(bytes, rules),
            Protocol::Redis(values) => values.replies(bytes, rules),
            Protocol::ZooKeeper(packets) => packets.replies(bytes, rules),
            Protocol::Election(_) => Some(Arriving { to_client: bytes.to_vec(), credit: Vec::new() }),
        }
    }

    /// What was kept and may arrive now.
    pub(super) fn released(&self, rules: &Rules) -> Vec<u8> {
        match &mut *lock(&self.0) {
            Protocol::Grpc(grpc) if !rules.holds_events => grpc.released(),
            Protocol::Redis(values) => values.released(rules),
            Protocol::ZooKeeper(packets) if !rules.holds_events => packets.released(),
            _ => Vec::new(),
        }
    }
}
