//! Wrong backends, on which the suite is tested. Each is the memory backend with one defect.
//!
//! `tests/self_check/` lists the cases that fail on each. Authors of a backend can read here what goes wrong.

mod admin;
mod grants;
mod powers;
mod queue;
mod store;
mod wrapper;

use std::{fmt::Debug, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use lockkit_core::{
    backend::{Backend, BackendInfo, Promises, QueueKind},
    memory::MemoryServer,
};

use self::store::{BrokenStore, SIMULATED_HOOKS};
use crate::{AnyBackend, Entry, Harness, Hook, Rounds, Sharing, Store, Time, memory::MEMORY_HOOKS};

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Defect {
    /// Every claim is granted at once.
    DoubleGrant,
    /// Every grant has the same token.
    EqualToken,
    /// Tokens fall.
    FallingToken,
    /// A release ends any hold on the lock.
    ForeignRelease,
    /// A claim that gives up returns, but stays in the queue.
    OrphanOnCancel,
    /// A try that finds the lock busy stays in the queue.
    OrphanOnTry,
    /// A waiter is granted late after each notification.
    SlowWakeUp,
    /// A waiter never re-checks by itself.
    LostWakeUp,
    /// All waiters re-check at the same moments, and only then.
    RechecksInStep,
    /// A lost session is not reported, and every renewal is confirmed.
    UnseenLoss,
    /// A lifetime counts from the reply instead of the sending.
    LifetimeFromReply,
    /// A release is confirmed, but not done.
    EmptyRelease,
    /// A renewal is confirmed, but not done.
    EmptyRenewal,
    /// A closed session is renewed for ever.
    EternalSession,
    /// The youngest waiter is granted first, while FIFO is claimed.
    FalseFifo,
    /// The first waiter of a lock is sent back to the end of the queue, while FIFO is claimed.
    SentBack,
    /// The server's sessions live ten times as long as reported.
    SlowExpiry,
    /// The server's sessions live two seconds longer than reported.
    LateExpiry,
    /// The server's sessions live two fifths of the reported ttl.
    EarlyExpiry,
    /// An unanswered claim is reported as busy.
    FailureAsBusy,
    /// Busy is reported as a failure.
    BusyAsFailure,
    /// The loss of one hold is reported as the loss of the session.
    LossOfAll,
    /// A waiter whose entry vanished is granted.
    GrantWithoutEntry,
    /// Names are cut to their letters.
    LossyNames,
    /// A heartbeat forgets every hold but the first.
    ForgetfulHeartbeat,
    /// A ttl of years is granted.
    TtlWithoutLimit,
    /// Closing a session does not end its pending claims.
    ClaimsOutliveClose,
    /// An unanswered request is not sent again.
    NoRetry,
    /// Closing a second time is an error.
    CloseOnce,
    /// The end of a hold is decided by the wall clock of the client that claims.
    WallClockInStore,
    /// The same with the client's boot clock.
    BootClockInStore,
    /// Each hold is renewed with a request of its own.
    ChattyHeartbeat,
    /// Any certificate is accepted.
    TrustsAnybody,
    /// A lock that the client may not use is reported as busy.
    DenialAsBusy,
    /// `Debug` prints a secret.
    PrintedSecret,
    /// A full store is reported as busy.
    FullStoreAsBusy,
    /// A release leaves something in the store for good.
    LeftEntry,
    /// A release leaves a counter without a ttl, while only counters with one may stay.
    CounterWithoutTtl,
    /// Each release leaves an entry of its own, which expires.
    EntryPerRelease,
    /// A closed session leaves a connection open.
    LeftConnection,
    /// A release leaves a task.
    LeftTask,
    /// A wait leaves a watch at the server.
    LeftWatch,
    /// The client relies on a lease for longer than the server grants.
    LifetimeTooLong,
    /// A session reports a shorter ttl than the least that its backend claims.
    ShortTtl,
    /// An unanswered renewal is reported as the loss of the session.
    UnknownAsLoss,
    /// A claim that was granted while it gave up is reported as given up, but keeps the lock.
    LeakyGiveUp,
    /// A renewal acquires a hold again that was released meanwhile.
    RevivingRenewal,
    /// A release is confirmed at once, but done half a ttl later.
    SlowHandoff,
    /// Tokens restart from the beginning with the server.
    TokensStartAgain,
    /// The server loses its sessions when it restarts, and confirms their renewals.
    ForgetfulRestart,
    /// No session of before a restart of the server gets an answer to its heartbeats.
    UnansweredRestart,
    /// The leader that observers read is the one before.
    StaleLeader,
    /// The holder of a plain lock is not shown as a leader.
    UnseenHolder,
    /// A change of the leader notifies nobody, while notifications are claimed.
    SilentLeaderWatch,
    /// A value is confirmed, but not proclaimed.
    EmptyProclaim,
    /// A former leader's value replaces that of the current one.
    ForeignProclaim,
    /// A value that arrives late replaces a newer one.
    LateProclaim,
    /// A record is seen by the session that wrote it only.
    RecordOfSession,
    /// A former holder's record is written.
    ForeignRecord,
    /// All names share one record.
    SharedRecord,
    /// A pin is confirmed, but not made.
    EmptyPin,
    /// A pin lasts a thousand times as long.
    EndlessPin,
    /// A pinned entry ends with its pin, although it is held.
    PinEndsHold,
    /// A pinned entry stays although its grant is released.
    StickyPin,
    /// A pin of an ended grant is confirmed.
    ForeignPin,
    /// An inspection shows the holder without its token.
    UnseenToken,
    /// An inspection shows the waiters in another order.
    MixedWaiters,
    /// An inspection shows an entry that is kept for much longer than it is.
    EndlessEntry,
    /// An inspection of a free lock shows its last holder.
    GhostHolder,
    /// A list contains locks of other prefixes.
    IgnoredPrefix,
    /// A list takes its prefix for a path.
    PrefixIsPath,
    /// A list leaves out every second page.
    SkippedPage,
    /// The cursor of a list counts the locks before the page, which may be released meanwhile.
    CountingCursor,
    /// A list contains locks that were released.
    ListedForEver,
    /// A list leaves out long names.
    ShortNamesOnly,
    /// A break is confirmed, but not done.
    EmptyBreak,
    /// A break ends the hold of the present holder.
    BreakOfAnybody,
    /// A break notifies neither the broken holder nor the next waiter.
    SilentBreak,
    /// A break ends the session of the holder.
    BreakOfSession,
    /// A release makes every waiter send a request.
    WakesAll,
    /// A session fails claims while its first one is under way.
    OneFirstClaim,
    /// No certificate is accepted.
    TrustsNobody,
    /// An inspection shows the label escaped, and so longer than it may be.
    EscapedLabel,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 83] = [
        Self::DoubleGrant,
        Self::EqualToken,
        Self::FallingToken,
        Self::ForeignRelease,
        Self::OrphanOnCancel,
        Self::OrphanOnTry,
        Self::SlowWakeUp,
        Self::LostWakeUp,
        Self::RechecksInStep,
        Self::UnseenLoss,
        Self::LifetimeFromReply,
        Self::EmptyRelease,
        Self::EmptyRenewal,
        Self::EternalSession,
        Self::FalseFifo,
        Self::SentBack,
        Self::SlowExpiry,
        Self::LateExpiry,
        Self::EarlyExpiry,
        Self::FailureAsBusy,
        Self::BusyAsFailure,
        Self::LossOfAll,
        Self::GrantWithoutEntry,
        Self::LossyNames,
        Self::ForgetfulHeartbeat,
        Self::TtlWithoutLimit,
        Self::ClaimsOutliveClose,
        Self::NoRetry,
        Self::CloseOnce,
        Self::WallClockInStore,
        Self::BootClockInStore,
        Self::ChattyHeartbeat,
        Self::TrustsAnybody,
        Self::DenialAsBusy,
        Self::PrintedSecret,
        Self::FullStoreAsBusy,
        Self::LeftEntry,
        Self::CounterWithoutTtl,
        Self::EntryPerRelease,
        Self::LeftConnection,
        Self::LeftTask,
        Self::LeftWatch,
        Self::LifetimeTooLong,
        Self::ShortTtl,
        Self::UnknownAsLoss,
        Self::LeakyGiveUp,
        Self::RevivingRenewal,
        Self::SlowHandoff,
        Self::TokensStartAgain,
        Self::ForgetfulRestart,
        Self::UnansweredRestart,
        Self::StaleLeader,
        Self::UnseenHolder,
        Self::SilentLeaderWatch,
        Self::EmptyProclaim,
        Self::ForeignProclaim,
        Self::LateProclaim,
        Self::RecordOfSession,
        Self::ForeignRecord,
        Self::SharedRecord,
        Self::EmptyPin,
        Self::EndlessPin,
        Self::PinEndsHold,
        Self::StickyPin,
        Self::ForeignPin,
        Self::UnseenToken,
        Self::MixedWaiters,
        Self::EndlessEntry,
        Self::GhostHolder,
        Self::IgnoredPrefix,
        Self::PrefixIsPath,
        Self::SkippedPage,
        Self::CountingCursor,
        Self::ListedForEver,
        Self::ShortNamesOnly,
        Self::EmptyBreak,
        Self::BreakOfAnybody,
        Self::SilentBreak,
        Self::BreakOfSession,
        Self::WakesAll,
        Self::OneFirstClaim,
        Self::TrustsNobody,
        Self::EscapedLabel,
    ];
}

/// The memory backend with one defect.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "the defect says everything")]
pub struct BrokenHarness(pub Defect);

impl Harness for BrokenHarness {
    fn name(&self) -> String {
        format!("{:?}", self.0)
    }

    fn info(&self) -> BackendInfo {
        info(self.0)
    }

    fn promises(&self) -> Promises {
        promises(self.0)
    }

    fn time(&self) -> Time {
        Time::Paused
    }

    fn rounds(&self) -> Rounds {
        Rounds::Few
    }

    fn expiry_delay(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn hooks(&self) -> Vec<Hook> {
        [MEMORY_HOOKS.as_slice(), &SIMULATED_HOOKS].concat()
    }

    fn parallel(&self) -> usize {
        2
    }

    fn store(&self, _: Sharing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(BrokenStore::new(self.0)))
    }

    fn may_stay(&self, entry: &Entry) -> Option<&'static str> {
        (entry.is_bounded && entry.place.starts_with("counter")).then_some("kept for a time")
    }

    fn left_per_lock(&self) -> usize {
        1
    }

    fn connect(&self, _: &str) -> Result<AnyBackend> {
        bail!("a memory server is in one process")
    }
}

fn info(defect: Defect) -> BackendInfo {
    let mut info = MemoryServer::new().backend().info();
    if defect == Defect::TtlWithoutLimit {
        info.ttl_max = Duration::MAX;
    }
    info
}

fn promises(defect: Defect) -> Promises {
    let promises = MemoryServer::new().backend().promises();
    match defect {
        Defect::FalseFifo | Defect::SentBack => promises.with_queue(QueueKind::Fifo),
        Defect::RechecksInStep => promises.with_queue(QueueKind::Unordered),
        _ => promises,
    }
}
