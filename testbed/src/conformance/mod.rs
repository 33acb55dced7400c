//! Adapters from the testbed's parts to the traits of the conformance suite.

mod cluster;

use std::time::Duration;

use anyhow::Result;
use lockkit_conformance::{LinkFault, WallClock};

pub use self::cluster::{ClusterStore, Members};
use crate::{Direction, Flow, Message, Proxy, ServerClock};

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
