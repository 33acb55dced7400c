//! A case: one promise, and what is needed to test it.

use std::{fmt, future::Future, pin::Pin};

use anyhow::Result;
use lockkit_core::backend::{Lifetime, LossDetection, QueueKind};

use crate::{Harness, Hook, Sharing, Time, context::Cx};

/// One promise as a test that can fail.
#[derive(Clone, Copy)]
pub struct Case {
    /// The name says what holds; it is stable.
    pub name: &'static str,
    /// The properties that it proves.
    pub properties: &'static [Property],
    /// What a backend must claim, and a harness must have, for the case to make sense.
    pub needs: &'static [Need],
    /// Bugs of other lock clients and servers that it would have caught, by the numbers that lockkit's repository gives
    /// them in `docs/lock-bugs.md`.
    pub bugs: &'static [u8],
    pub(crate) run: Run,
}

/// The body of a case.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Of a case of the suite, for every backend.
    Suite(SuiteCase),
    /// Of a case of one backend, which makes its own stores.
    Own(fn() -> CaseFuture),
}

/// The body of a case of the suite.
pub(crate) type SuiteCase = fn(Cx) -> CaseFuture;

/// A running case; `Err` says what does not hold.
pub type CaseFuture = Pin<Box<dyn Future<Output = Result<()>>>>;

impl Case {
    /// Makes a case that only one backend has, for [`Harness::own_cases`]; [`own_case!`](crate::own_case) is shorter.
    ///
    /// It makes its own stores, and checks for residue itself.
    pub const fn own(name: &'static str, properties: &'static [Property], run: fn() -> CaseFuture) -> Self {
        Self { name, properties, needs: &[], bugs: &[], run: Run::Own(run) }
    }

    /// Adds the [bugs](Self::bugs) that it would have caught.
    #[must_use]
    pub const fn catching(mut self, bugs: &'static [u8]) -> Self {
        self.bugs = bugs;
        self
    }

    /// Returns why this case does not run on this backend; `None` when it does.
    pub fn unmet(&self, harness: &dyn Harness) -> Option<String> {
        self.needs.iter().find_map(|need| need.unmet(harness)).or_else(|| harness.left_out(self))
    }

    pub(crate) fn sharing(&self) -> Sharing {
        let hooks = self.needs.iter().filter_map(|need| match need {
            Need::Hook(hook) => Some(hook.sharing()),
            _ => None,
        });
        hooks.max().unwrap_or(Sharing::Shared)
    }

    /// Returns the properties as text: `TimedExclusion TokenOrder`.
    pub fn label(&self) -> String {
        self.properties.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.label())
    }
}

/// A promise that the suite proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Property {
    /// Two guards of one name are never both held.
    TimedExclusion,
    /// The token orders writes, whatever clocks and pauses do.
    FencedExclusion,
    /// Tokens are distinct, and rise in the order of the grants.
    TokenOrder,
    /// A dead holder delays the next waiter for a bounded time.
    BoundedTakeover,
    /// No wake-up is lost.
    NoLostWakeUp,
    /// An attempt without a grant leaves nothing.
    NoOrphan,
    /// A release touches its own hold only.
    NoForeignRelease,
    /// Nothing renews a hold after its end.
    NoLateRenewal,
    /// Re-entry by owner: n guards need n releases.
    Reentry,
    /// First come, first served.
    Fifo,
    /// A loss is noticed in a bounded time.
    BoundedLoss,
    /// Errors are true: an unknown outcome is never reported as busy or granted.
    TruthfulErrors,
    /// Nothing is left behind.
    NoResidue,
    /// A fault of one lock ends no other.
    Isolation,
    /// Observers see who leads and what it proposes, and never an older leader after a newer one.
    SeenLeader,
    /// Work runs at most once per period.
    OncePerPeriod,
    /// A hold lasts at least as long as it was asked to, whatever becomes of its holder.
    MinimumHold,
    /// Operators see who holds a lock and who waits for it, and find every lock that is used.
    SeenHolder,
    /// A break ends the hold that it names and no other, and hands the lock over.
    PreciseBreak,
    /// Names are independent, foreign data harmless, secrets kept.
    Security,
}

impl Property {
    /// All properties, in the order of the tables.
    pub const ALL: [Self; 20] = [
        Self::TimedExclusion,
        Self::FencedExclusion,
        Self::TokenOrder,
        Self::BoundedTakeover,
        Self::NoLostWakeUp,
        Self::NoOrphan,
        Self::NoForeignRelease,
        Self::NoLateRenewal,
        Self::Reentry,
        Self::Fifo,
        Self::BoundedLoss,
        Self::TruthfulErrors,
        Self::NoResidue,
        Self::Isolation,
        Self::SeenLeader,
        Self::OncePerPeriod,
        Self::MinimumHold,
        Self::SeenHolder,
        Self::PreciseBreak,
        Self::Security,
    ];
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A condition under which a case can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// The harness has this hook.
    Hook(Hook),
    /// The backend claims to grant in order of arrival.
    Fifo,
    /// Holds end unless they are renewed.
    Ttl,
    /// Holds live and die with their client's session.
    SessionLifetime,
    /// A lost session is reported at once.
    SessionPushed,
    /// The case needs the real clock.
    RealTime,
    /// The case needs a paused clock.
    PausedTime,
    /// The backend claims elections.
    Elections,
    /// The backend claims that observers of an election are notified.
    LeaderWatch,
    /// The backend claims records.
    Records,
    /// The backend claims pins.
    Pins,
    /// The backend claims lists.
    List,
    /// The backend claims breaks.
    Break,
    /// The backend claims lists or breaks, for which operators inspect locks.
    Inspection,
    /// The library lacks this.
    Library(&'static str),
}

impl Need {
    fn unmet(self, harness: &dyn Harness) -> Option<String> {
        let (info, promises) = (harness.info(), harness.promises());
        let (met, reason) = match self {
            Self::Hook(hook) => {
                let why = harness.why_not(hook).map_or_else(String::new, |why| format!(": {why}"));
                (harness.hooks().contains(&hook), format!("the harness has no hook {hook:?}{why}"))
            }
            Self::Fifo => (promises.queue == QueueKind::Fifo, "FIFO is not claimed".to_owned()),
            Self::Ttl => (
                info.lifetime != Lifetime::Process,
                "holds have no ttl: they end by release or with their process".to_owned(),
            ),
            Self::SessionLifetime => {
                (info.lifetime == Lifetime::Session, "holds do not live and die with a session".to_owned())
            }
            Self::SessionPushed => (
                promises.loss == LossDetection::SessionPushed,
                "reporting a lost session at once is not claimed".to_owned(),
            ),
            Self::RealTime => (harness.time() == Time::Real, "the store runs on a paused clock".to_owned()),
            Self::PausedTime => (
                harness.time() == Time::Paused,
                "on a real clock the machine itself varies every moment".to_owned(),
            ),
            Self::Elections => (info.powers.elections, "elections are not claimed".to_owned()),
            Self::LeaderWatch => (
                info.powers.leader_watch,
                "observers of an election poll; notifications are not claimed".to_owned(),
            ),
            Self::Records => (info.powers.records, "records are not claimed".to_owned()),
            Self::Pins => (info.powers.pins, "pins are not claimed".to_owned()),
            Self::List => (info.powers.list, "listing locks is not claimed".to_owned()),
            Self::Break => (info.powers.break_lock, "breaking locks is not claimed".to_owned()),
            Self::Inspection => (
                info.powers.list || info.powers.break_lock,
                "neither listing nor breaking locks is claimed".to_owned(),
            ),
            Self::Library(what) => (false, what.to_owned()),
        };
        (!met).then_some(reason)
    }
}

impl Hook {
    /// The kind of store that its use needs.
    fn sharing(self) -> Sharing {
        match self {
            Self::Processes
            | Self::Entries
            | Self::BareNotification
            | Self::Evidence
            | Self::Watched
            | Self::Lifetimes
            | Self::EndSessionOfHolder
            | Self::EndSessionOfWaiter
            | Self::DeleteEntries
            | Self::WriteJunk
            | Self::WallClock
            | Self::Tls
            | Self::Secret
            // A link belongs to one client.
            | Self::HoldRequests
            | Self::SwallowReplies
            | Self::DropNotifications
            | Self::Reset
            | Self::Refuse
            | Self::DropReplies
            | Self::Delay
            | Self::Trickle
            | Self::HoldNotifications => Sharing::Shared,
            // The requests of other cases would be counted too.
            Self::Requests
            | Self::Counts
            | Self::Contents
            | Self::Freeze
            | Self::Restart
            | Self::Stop
            | Self::Wipe
            | Self::ForgetHistory
            | Self::FillStore
            | Self::FullDisk => Sharing::Own,
            Self::LoseLeader | Self::IsolateMember => Sharing::Cluster,
            Self::ExpireLogins | Self::DenyLock => Sharing::Login,
        }
    }
}

impl Case {
    /// Whether the case declares this hook.
    pub(crate) fn declares(&self, hook: Hook) -> bool {
        self.needs.contains(&Need::Hook(hook))
    }
}

/// The case made of the function with this name.
macro_rules! case {
    ($name:ident: $($property:ident)+ $(, needs $($need:expr),+)? $(; bugs $($bug:literal)+)?) => {
        $crate::case::Case {
            name: stringify!($name),
            properties: &[$($crate::case::Property::$property),+],
            needs: &[$($($need),+)?],
            bugs: &[$($($bug),+)?],
            run: $crate::case::Run::Suite(|cx| Box::pin($name(cx))),
        }
    };
}
pub(crate) use case;

/// Makes a [`Case`] that only one backend has: the async function of this name (with its type argument,
/// where it takes one), the properties that it proves, and the [bugs](crate::Case::bugs) that it would have caught.
///
/// ```
/// # use lockkit_conformance::{Case, own_case};
/// async fn cut_off_follower_is_detected() -> anyhow::Result<()> {
///     Ok(())
/// }
///
/// async fn lost_reply_is_requested_again<Servers>() -> anyhow::Result<()> {
///     Ok(())
/// }
///
/// const CASES: [Case; 2] = [
///     own_case!(cut_off_follower_is_detected: TimedExclusion BoundedLoss),
///     own_case!(lost_reply_is_requested_again<u8>: NoOrphan TruthfulErrors; bugs 52 55),
/// ];
/// assert_eq!(CASES[1].bugs, [52, 55]);
/// ```
#[macro_export]
macro_rules! own_case {
    ($name:ident $(<$of:ty>)?: $($property:ident)+ $(; bugs $($bug:literal)+)?) => {
        $crate::Case::own(
            stringify!($name),
            &[$($crate::Property::$property),+],
            || ::std::boxed::Box::pin($name $(::<$of>)? ()),
        )
        .catching(&[$($($bug),+)?])
    };
}

#[cfg(test)]
mod tests {
    use lockkit_core::backend::{BackendInfo, Promises};

    use super::*;
    use crate::{AnyBackend, Outcome, Rounds, Store, cases, memory::MemoryHarness, run_case};

    /// A harness that leaves out one case.
    #[derive(Debug)]
    struct LeavesOut(&'static str);

    impl Harness for LeavesOut {
        fn name(&self) -> String {
            MemoryHarness.name()
        }
        fn info(&self) -> BackendInfo {
            MemoryHarness.info()
        }
        fn promises(&self) -> Promises {
            MemoryHarness.promises()
        }
        fn time(&self) -> Time {
            MemoryHarness.time()
        }
        fn rounds(&self) -> Rounds {
            MemoryHarness.rounds()
        }
        fn hooks(&self) -> Vec<Hook> {
            MemoryHarness.hooks()
        }
        fn parallel(&self) -> usize {
            1
        }
        fn store(&self, sharing: Sharing) -> Result<std::sync::Arc<dyn Store>> {
            MemoryHarness.store(sharing)
        }
        fn connect(&self, address: &str) -> Result<AnyBackend> {
            MemoryHarness.connect(address)
        }
        fn left_out(&self, case: &Case) -> Option<String> {
            (case.name == self.0).then(|| "tested elsewhere".to_owned())
        }
    }

    #[test]
    fn case_that_is_left_out_is_ignored_with_the_reason() {
        let harness: std::sync::Arc<dyn Harness> = std::sync::Arc::new(LeavesOut("second_close_succeeds"));
        let outcome = |name| {
            let case = cases().into_iter().find(|case| case.name == name).unwrap();
            run_case(&harness, case, 1).outcome
        };
        assert_eq!(outcome("second_close_succeeds"), Outcome::Ignored("tested elsewhere".to_owned()));
        assert_eq!(outcome("second_release_has_no_effect"), Outcome::Passed);
    }
}
