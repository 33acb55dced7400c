//! Adapters from the testbed's parts to the traits of the conformance suite.

mod cluster;

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, ClientLink, Hook, LinkFault, WallClock};

pub use self::cluster::{ClusterStore, Members};
use crate::{Direction, Flow, Message, Proxy, ServerClock};

/// The hooks of every store that is a [`Daemon`](crate::Daemon) of the testbed and shows what is in it.
pub const SERVER_HOOKS: [Hook; 12] = [
    Hook::Processes,
    Hook::Entries,
    Hook::Requests,
    Hook::BareNotification,
    Hook::Lifetimes,
    Hook::Contents,
    Hook::Counts,
    Hook::DeleteEntries,
    Hook::WriteJunk,
    Hook::Freeze,
    Hook::Restart,
    Hook::Stop,
];

/// The hooks of every link that is a [`Proxy`]: see [`Proxy::inflict`].
pub const LINK_HOOKS: [Hook; 9] = [
    Hook::HoldRequests,
    Hook::SwallowReplies,
    Hook::DropNotifications,
    Hook::Reset,
    Hook::Refuse,
    Hook::DropReplies,
    Hook::Delay,
    Hook::Trickle,
    Hook::HoldNotifications,
];

impl WallClock for ServerClock {
    fn environment(&self) -> Vec<(String, String)> {
        let pairs = self.environment();
        let split = pairs.iter().filter_map(|pair| pair.split_once('='));
        split.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn step_forward(&self, by: Duration) -> Result<()> {
        self.step_forward(by)
    }

    fn step_back(&self, by: Duration) -> Result<()> {
        self.step_back(by)
    }
}

/// A client's link to its servers: a proxy in front of each. All have the same fault.
#[derive(Debug)]
pub struct ProxyLink {
    proxies: Vec<Proxy>,
    url: String,
    connect: fn(&str) -> Result<AnyBackend>,
}

impl ProxyLink {
    /// Returns a link over these proxies. `connect` makes a backend from the client's `url`, which names them.
    pub fn new(proxies: Vec<Proxy>, url: String, connect: fn(&str) -> Result<AnyBackend>) -> Self {
        Self { proxies, url, connect }
    }
}

#[async_trait]
impl ClientLink for ProxyLink {
    fn backend(&self) -> Result<AnyBackend> {
        (self.connect)(&self.url)
    }

    async fn inflict(&self, fault: LinkFault) -> Result<()> {
        self.proxies.iter().try_for_each(|proxy| proxy.inflict(fault))
    }

    async fn heal(&self) -> Result<()> {
        self.proxies.iter().for_each(Proxy::pass);
        Ok(())
    }
}

impl Proxy {
    /// Applies a fault of the suite to all connections, until [`pass`](Self::pass). Notifications are held as by
    /// [`hold_events`](Self::hold_events), which not every proxy supports.
    ///
    /// # Errors
    ///
    /// When a proxy has no such fault.
    pub fn inflict(&self, fault: LinkFault) -> Result<()> {
        match fault {
            LinkFault::HoldRequests => self.set(Direction::Requests, Flow::Hold),
            LinkFault::SwallowReplies(count) => self.swallow_next(count as u64),
            LinkFault::DropNotifications => self.drop_messages(Message::Events, |_| true),
            LinkFault::Reset => self.reset(),
            LinkFault::Refuse => self.refuse(),
            LinkFault::DropReplies => self.set(Direction::Replies, Flow::Drop),
            LinkFault::Delay(by) => self.set(Direction::Replies, Flow::Delay(by)),
            LinkFault::Trickle(every) => self.set(Direction::Replies, Flow::Trickle { bytes: 1, every }),
            LinkFault::HoldNotifications => self.hold_events(),
            other => return other.unsupported(),
        }
        Ok(())
    }
}
