//! The harm that the suite does to stores and to the ways that lead there, and the hooks that say which of it can be done.

use std::time::Duration;

use anyhow::{Result, bail};
use lockkit_core::LockName;

/// Something that a harness can do beyond making stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// [`Store::contents`](crate::Store::contents) and [`Harness::may_stay`](crate::Harness::may_stay).
    Contents,
    /// [`Store::counts`](crate::Store::counts).
    Counts,
    /// [`Store::frees_within`](crate::Store::frees_within).
    Lifetimes,
    /// [`Fault::EndSessionOfHolder`].
    EndSessionOfHolder,
    /// [`Fault::EndSessionOfWaiter`].
    EndSessionOfWaiter,
    /// [`Fault::DeleteEntries`].
    DeleteEntries,
    /// [`Fault::WriteJunk`].
    WriteJunk,
    /// [`Fault::Freeze`] and [`Fault::Thaw`].
    Freeze,
    /// [`Fault::Restart`].
    Restart,
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
    /// [`Fault::Wipe`].
    Wipe,
    /// [`Fault::ForgetHistory`].
    ForgetHistory,
    /// [`Fault::LoseLeader`].
    LoseLeader,
    /// [`Fault::IsolateMember`] and [`Fault::RejoinMember`].
    IsolateMember,
    /// [`Fault::FillStore`] and [`Fault::MakeRoom`].
    FillStore,
    /// [`Fault::ExpireLogins`].
    ExpireLogins,
    /// [`Fault::FillDisk`] and [`Fault::EmptyDisk`].
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

/// Harm done to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An operator, or its expiry, ends the session of whoever holds this lock.
    EndSessionOfHolder(LockName),
    /// The same with the client that has waited longest.
    EndSessionOfWaiter(LockName),
    /// An operator deletes the entries of the holder and the waiters of this lock.
    DeleteEntries(LockName),
    /// Somebody writes what no client would where the clients of this lock keep data about themselves.
    WriteJunk(LockName),
    /// The server stands still: connections stay open, nothing is answered; its timers run on or catch up.
    Freeze,
    /// It goes on.
    Thaw,
    /// The server is killed and started again with its data.
    Restart,
    /// The server is killed and started again with nothing.
    Wipe,
    /// The server forgets how its data came about; what there is now stays.
    ForgetHistory,
    /// The leader of a [cluster](crate::Sharing::Cluster) is killed; it comes back once the others have another one.
    LoseLeader,
    /// The member of a [cluster](crate::Sharing::Cluster) that links lead to is cut from the others; clients reach it as before.
    IsolateMember,
    /// It is back among them.
    RejoinMember,
    /// The store takes no more writes for want of room.
    FillStore,
    /// It has room again.
    MakeRoom,
    /// The server forgets that clients have [logged in](crate::Sharing::Login).
    ExpireLogins,
    /// The disk that the store writes to is full.
    FillDisk,
    /// What filled it is gone.
    EmptyDisk,
}

impl Fault {
    /// The hook that this needs.
    pub fn hook(&self) -> Hook {
        match self {
            Self::EndSessionOfHolder(_) => Hook::EndSessionOfHolder,
            Self::EndSessionOfWaiter(_) => Hook::EndSessionOfWaiter,
            Self::DeleteEntries(_) => Hook::DeleteEntries,
            Self::WriteJunk(_) => Hook::WriteJunk,
            Self::Freeze | Self::Thaw => Hook::Freeze,
            Self::Restart => Hook::Restart,
            Self::Wipe => Hook::Wipe,
            Self::ForgetHistory => Hook::ForgetHistory,
            Self::LoseLeader => Hook::LoseLeader,
            Self::IsolateMember | Self::RejoinMember => Hook::IsolateMember,
            Self::FillStore | Self::MakeRoom => Hook::FillStore,
            Self::ExpireLogins => Hook::ExpireLogins,
            Self::FillDisk | Self::EmptyDisk => Hook::FullDisk,
        }
    }

    /// The answer of a harness that has no such hook.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn unsupported(&self) -> Result<()> {
        bail!("the harness declares {:?}, but cannot do {self:?}", self.hook())
    }
}

/// A disturbance of one client's way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// Requests wait on their way until [`Link::heal`](crate::Link::heal); then they arrive, in their order.
    HoldRequests,
    /// The next so many replies are lost, while their requests arrive; at most those up to [`Link::heal`](crate::Link::heal).
    SwallowReplies(usize),
    /// No message that the store sends unasked arrives.
    DropNotifications,
    /// Every open connection is reset, once.
    Reset,
    /// Every open connection is reset, and each new one.
    Refuse,
    /// Nothing arrives that the store sends, while connections stay open.
    DropReplies,
    /// Everything that the store sends arrives so much later.
    Delay(Duration),
    /// What the store sends arrives byte by byte, so long after each other.
    Trickle(Duration),
    /// What the store sends unasked waits on its way until [`Link::heal`](crate::Link::heal).
    HoldNotifications,
}

impl LinkFault {
    /// The hook that this needs.
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

    /// The answer of a link that has no such hook.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn unsupported(self) -> Result<()> {
        bail!("the harness declares {:?}, but its link cannot do {self:?}", self.hook())
    }
}
