//! Wrong backends, one per promise: the suite is tested on them. Each is the memory backend with one thing broken.
//!
//! `tests/self_check/` says which cases fail on each. Whoever writes a backend may read here what goes wrong.

mod grants;
mod queue;
mod store;
mod wrapper;

use std::{fmt::Debug, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use lockkit_core::{
    backend::{Backend, BackendInfo, QueueKind},
    memory::MemoryServer,
};

use self::store::{BrokenStore, PLAYED_HOOKS};
use crate::{AnyBackend, Harness, Hook, Rounds, Sharing, Store, Time, memory::MEMORY_HOOKS};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Defect {
    /// Everybody is granted everything.
    DoubleGrant,
    /// Every grant has the same token.
    EqualToken,
    /// Tokens fall.
    FallingToken,
    /// A release ends whatever hold there is on the lock.
    ForeignRelease,
    /// A claim that gives up is answered, and stays in the queue.
    OrphanOnCancel,
    /// A try that finds the lock busy stays in the queue.
    OrphanOnTry,
    /// A waiter looks only when it is notified, and notifications come late.
    SlowWakeUp,
    /// A waiter never looks again by itself.
    LostWakeUp,
    /// A lost session is not told, and every renewal is answered as if all were well.
    UnseenLoss,
    /// A lifetime counts from the answer instead of the sending.
    LateStamp,
    /// A release is confirmed, and not done.
    EmptyRelease,
    /// A renewal is confirmed, and not done.
    EmptyRenewal,
    /// A closed session lives on, renewed for ever.
    EternalSession,
    /// Waiters are served in any order, while first come, first served is claimed.
    FalseFifo,
    /// The first waiter of a lock is sent back to the end of the queue, while first come, first served is claimed.
    SentBack,
    /// The server's sessions live ten times as long as told.
    SlowExpiry,
    /// The server's sessions live a third of what is told.
    EarlyExpiry,
    /// A request that fails is told as busy.
    FailureToldAsBusy,
    /// Busy is told as a failure.
    BusyToldAsFailure,
    /// The loss of one hold is told as the loss of the session.
    LossOfAll,
    /// A waiter whose entry vanished is told that it was granted.
    GrantOnDeadEntry,
    /// Names are cut to their letters.
    LossyNames,
    /// A beat forgets every hold but the first.
    ForgetfulBeat,
    /// A ttl of years is granted.
    AnyTtl,
    /// Closing a session leaves its pending claims waiting.
    DeafClose,
    /// A request that gets no answer is not sent again.
    NoRetry,
    /// Closing a second time is an error.
    CloseOnce,
    /// A hold is taken to be over by what the wall clock of whoever asks reads.
    WallClockInStore,
    /// The same by its boot clock.
    BootClockInStore,
    /// Each hold is renewed by a request of its own.
    ChattyBeat,
    /// Any certificate is accepted.
    TrustsAnybody,
    /// A lock that the client may not touch is told as busy.
    DenialToldAsBusy,
    /// A secret is in what `Debug` prints.
    ToldSecret,
    /// A store without room is told as busy.
    NoRoomToldAsBusy,
    /// A release leaves something in the store for good.
    LeftEntry,
    /// A wait leaves a watch at the server.
    LeftWatch,
    /// Lifetimes are believed longer than the server grants them.
    LongBelief,
    /// A session reports a shorter ttl than the least that its backend claims.
    ShortTtl,
    /// A renewal that is not answered is told as the loss of the session.
    DoubtToldAsLoss,
    /// A claim that was granted while it gave up is answered as given up, and keeps the lock.
    LeakyGiveUp,
    /// A renewal brings a hold back that was released meanwhile.
    RevivingRenewal,
    /// A release is answered at once, and passes the lock on half a ttl later.
    SlowHandOver,
    /// Tokens begin anew when the server was started again.
    TokensStartAgain,
    /// The server forgets its sessions when it was started again, and answers their renewals as if all were well.
    ForgetfulRestart,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 44] = [
        Self::DoubleGrant,
        Self::EqualToken,
        Self::FallingToken,
        Self::ForeignRelease,
        Self::OrphanOnCancel,
        Self::OrphanOnTry,
        Self::SlowWakeUp,
        Self::LostWakeUp,
        Self::UnseenLoss,
        Self::LateStamp,
        Self::EmptyRelease,
        Self::EmptyRenewal,
        Self::EternalSession,
        Self::FalseFifo,
        Self::SentBack,
        Self::SlowExpiry,
        Self::EarlyExpiry,
        Self::FailureToldAsBusy,
        Self::BusyToldAsFailure,
        Self::LossOfAll,
        Self::GrantOnDeadEntry,
        Self::LossyNames,
        Self::ForgetfulBeat,
        Self::AnyTtl,
        Self::DeafClose,
        Self::NoRetry,
        Self::CloseOnce,
        Self::WallClockInStore,
        Self::BootClockInStore,
        Self::ChattyBeat,
        Self::TrustsAnybody,
        Self::DenialToldAsBusy,
        Self::ToldSecret,
        Self::NoRoomToldAsBusy,
        Self::LeftEntry,
        Self::LeftWatch,
        Self::LongBelief,
        Self::ShortTtl,
        Self::DoubtToldAsLoss,
        Self::LeakyGiveUp,
        Self::RevivingRenewal,
        Self::SlowHandOver,
        Self::TokensStartAgain,
        Self::ForgetfulRestart,
    ];
}

/// The memory backend with one defect.
#[derive(Clone, Copy, Debug)]
pub struct BrokenHarness(pub Defect);

impl Harness for BrokenHarness {
    fn name(&self) -> String {
        format!("{:?}", self.0)
    }

    fn info(&self) -> BackendInfo {
        info(self.0)
    }

    fn time(&self) -> Time {
        Time::Paused
    }

    fn rounds(&self) -> Rounds {
        Rounds::Few
    }

    fn hooks(&self) -> Vec<Hook> {
        [MEMORY_HOOKS.as_slice(), &PLAYED_HOOKS].concat()
    }

    fn parallel(&self) -> usize {
        2
    }

    fn store(&self, _: Sharing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(BrokenStore::new(self.0)))
    }

    fn connect(&self, _: &str) -> Result<AnyBackend> {
        bail!("a memory server is in one process")
    }
}

fn info(defect: Defect) -> BackendInfo {
    let mut info = MemoryServer::new().backend().info();
    match defect {
        Defect::AnyTtl => info.ttl_max = Duration::MAX,
        Defect::FalseFifo | Defect::SentBack => info.queue = QueueKind::Fifo,
        _ => {}
    }
    info
}
