//! The faults that the suite injects into stores and connections, and the hooks that say which ones a harness supports.

use std::time::Duration;

use anyhow::{Result, bail};
use lockkit_core::LockName;

/// An ability of a harness beyond making stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hook {
    /// Other processes reach the store: [`Store::address`](crate::Store::address) and
    /// [`Harness::connect`](crate::Harness::connect).
    Processes,
    /// [`Store::entries`](crate::Store::entries).
    Entries,
    /// [`Store::requests`](crate::Store::requests).
    Requests,
    /// [`Store::bare_notification`](crate::Store::bare_notification).
    BareNotification,
    /// [`Store::proves`](crate::Store::proves).
    Evidence,
    /// [`Store::contents`](crate::Store::contents) and [`Harness::may_stay`](crate::Harness::may_stay).
    Contents,
    /// [`Store::counts`](crate::Store::counts).
    Counts,
    /// [`Store::watched`](crate::Store::watched).
    Watched,
    /// [`Store::frees_within`](crate::Store::frees_within).
    Lifetimes,
    /// [`StoreFault::EndSessionOfHolder`].
    EndSessionOfHolder,
    /// [`StoreFault::EndSessionOfWaiter`].
    EndSessionOfWaiter,
    /// [`StoreFault::DeleteEntries`].
    DeleteEntries,
    /// [`StoreFault::WriteJunk`].
    WriteJunk,
    /// [`StoreFault::Freeze`] and [`StoreFault::Thaw`].
    Freeze,
    /// [`StoreFault::Restart`].
    Restart,
    /// [`StoreFault::Stop`] and [`StoreFault::Start`].
    Stop,
    /// [`LinkFault::HoldRequests`].
    HoldRequests,
    /// [`LinkFault::SwallowReplies`].
    SwallowReplies,
    /// [`LinkFault::DropNotifications`].
    DropNotifications,
    /// [`LinkFault::Reset`].
    Reset,
    /// [`LinkFault::Refuse`].
    Refuse,
    /// [`LinkFault::DropReplies`].
    DropReplies,
    /// [`LinkFault::Delay`].
    Delay,
    /// [`LinkFault::Trickle`].
    Trickle,
    /// [`LinkFault::HoldNotifications`].
    HoldNotifications,
    /// [`StoreFault::Wipe`].
    Wipe,
    /// [`StoreFault::ForgetHistory`].
    ForgetHistory,
    /// [`StoreFault::LoseLeader`].
    LoseLeader,
    /// [`StoreFault::IsolateMember`] and [`StoreFault::RejoinMember`].
    IsolateMember,
    /// [`StoreFault::FillStore`] and [`StoreFault::MakeRoom`].
    FillStore,
    /// [`StoreFault::ExpireLogins`].
    ExpireLogins,
    /// [`StoreFault::FillDisk`] and [`StoreFault::EmptyDisk`].
    FullDisk,
    /// [`Access::Tls`](crate::Access::Tls).
    Tls,
    /// [`Access::Secret`](crate::Access::Secret).
    Secret,
    /// [`Access::AllBut`](crate::Access::AllBut).
    DenyLock,
    /// [`Harness::wall_clock`](crate::Harness::wall_clock).
    WallClock,
}

/// A fault of a store, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFault {
    /// The session of this lock's holder ends, by an operator or by expiry.
    EndSessionOfHolder(LockName),
    /// The same for the client that has waited longest.
    EndSessionOfWaiter(LockName),
    /// An operator deletes the entries of this lock's holder and waiters.
    DeleteEntries(LockName),
    /// Invalid data is written where the clients of this lock keep their metadata.
    WriteJunk(LockName),
    /// The server freezes: connections stay open, nothing is answered. Its timers run on or catch up later.
    Freeze,
    /// The frozen server continues.
    Thaw,
    /// The server is killed and restarted with its data.
    Restart,
    /// The server is killed, and stays down.
    Stop,
    /// The killed server starts again with its data.
    Start,
    /// The server is killed and restarted without its data.
    Wipe,
    /// The server drops the history of its data (it compacts); the present data stays.
    ForgetHistory,
    /// The leader of a [cluster](crate::Sharing::Cluster) is killed; it restarts once the others have a new one.
    LoseLeader,
    /// A member of a [cluster](crate::Sharing::Cluster), the one of the links, is cut off from the others only.
    IsolateMember,
    /// The isolated member is connected again.
    RejoinMember,
    /// The store is full: it accepts no more writes.
    FillStore,
    /// The full store has room again.
    MakeRoom,
    /// The server drops the [logins](crate::Sharing::Login) of its clients.
    ExpireLogins,
    /// The disk of the store is full.
    FillDisk,
    /// The full disk has room again.
    EmptyDisk,
}

impl StoreFault {
    /// The hook that this fault needs.
    pub fn hook(&self) -> Hook {
        match self {
            Self::EndSessionOfHolder(_) => Hook::EndSessionOfHolder,
            Self::EndSessionOfWaiter(_) => Hook::EndSessionOfWaiter,
            Self::DeleteEntries(_) => Hook::DeleteEntries,
            Self::WriteJunk(_) => Hook::WriteJunk,
            Self::Freeze | Self::Thaw => Hook::Freeze,
            Self::Restart => Hook::Restart,
            Self::Stop | Self::Start => Hook::Stop,
            Self::Wipe => Hook::Wipe,
            Self::ForgetHistory => Hook::ForgetHistory,
            Self::LoseLeader => Hook::LoseLeader,
            Self::IsolateMember | Self::RejoinMember => Hook::IsolateMember,
            Self::FillStore | Self::MakeRoom => Hook::FillStore,
            Self::ExpireLogins => Hook::ExpireLogins,
            Self::FillDisk | Self::EmptyDisk => Hook::FullDisk,
        }
    }

    /// Returns the error of a harness that has no such hook.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn unsupported(&self) -> Result<()> {
        bail!("the harness declares {:?}, but cannot do {self:?}", self.hook())
    }
}

/// A fault of one client's connection to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkFault {
    /// Requests are held back until [`ClientLink::heal`](crate::ClientLink::heal); then they arrive in their order.
    HoldRequests,
    /// This many replies are lost, while their requests arrive; [`ClientLink::heal`](crate::ClientLink::heal) ends it.
    SwallowReplies(usize),
    /// Notifications of the store are dropped.
    DropNotifications,
    /// Every open connection is reset once.
    Reset,
    /// Every open connection and each new one is reset.
    Refuse,
    /// Everything that the store sends is dropped; connections stay open.
    DropReplies,
    /// Everything that the store sends is delayed by this time.
    Delay(Duration),
    /// What the store sends arrives byte by byte, with this pause after each.
    Trickle(Duration),
    /// Notifications of the store are held back until [`ClientLink::heal`](crate::ClientLink::heal).
    HoldNotifications,
}

impl LinkFault {
    /// The hook that this fault needs.
    pub fn hook(self) -> Hook {
        match self {
            Self::HoldRequests => Hook::HoldRequests,
            Self::SwallowReplies(_) => Hook::SwallowReplies,
            Self::DropNotifications => Hook::DropNotifications,
            Self::Reset => Hook::Reset,
            Self::Refuse => Hook::Refuse,
            Self::DropReplies => Hook::DropReplies,
            Self::Delay(_) => Hook::Delay,
            Self::Trickle(_) => Hook::Trickle,
            Self::HoldNotifications => Hook::HoldNotifications,
        }
    }

    /// Returns the error of a link that has no such hook.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn unsupported(self) -> Result<()> {
        bail!("the harness declares {:?}, but its link cannot do {self:?}", self.hook())
    }
}
