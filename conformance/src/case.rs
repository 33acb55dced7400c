//! A case: one promise, and what it takes to try it.

use std::{fmt, future::Future, pin::Pin};

use anyhow::Result;
use lockkit_core::backend::{Lifetime, LossDetection, QueueKind};

use crate::{Harness, Hook, Sharing, Time, context::Cx};

/// One promise as something that can fail.
#[derive(Clone, Copy)]
pub struct Case {
    /// A sentence; stable.
    pub name: &'static str,
    /// The scenarios of the design that it stands for, such as `C1`.
    pub scenarios: &'static [&'static str],
    /// What it proves.
    pub properties: &'static [Property],
    /// What a backend must claim, and a harness have, for the case to make sense.
    pub needs: &'static [Need],
    /// Bugs of other lock clients that it would have caught, by their row in the corpus.
    pub bugs: &'static [u8],
    pub(crate) run: Run,
}

/// What a case does.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// One of the suite, on whichever backend.
    Suite(fn(Cx) -> Running),
    /// One of a backend, which brings along what it needs.
    Own(fn() -> Running),
}

/// A case under way; `Err` says what does not hold.
pub type Running = Pin<Box<dyn Future<Output = Result<()>>>>;

impl Case {
    /// A case that only one backend has, for [`Harness::own_cases`]; [`own_case!`](crate::own_case) is shorter.
    ///
    /// It brings along the stores that it needs, and looks for residue itself.
    pub const fn own(
        name: &'static str,
        scenarios: &'static [&'static str],
        properties: &'static [Property],
        run: fn() -> Running,
    ) -> Self {
        Self { name, scenarios, properties, needs: &[], bugs: &[], run: Run::Own(run) }
    }

    /// The same case with the [bugs](Self::bugs) that it would have caught.
    #[must_use]
    pub const fn catching(mut self, bugs: &'static [u8]) -> Self {
        self.bugs = bugs;
        self
    }

    /// Why this backend cannot be tried with this case; `None` when it can.
    pub fn unmet(&self, harness: &dyn Harness) -> Option<String> {
        self.needs.iter().find_map(|need| need.unmet(harness))
    }

    pub(crate) fn sharing(&self) -> Sharing {
        let hooks = self.needs.iter().filter_map(|need| match need {
            Need::Hook(hook) => Some(hook.sharing()),
            _ => None,
        });
        hooks.max().unwrap_or(Sharing::Shared)
    }

    /// Scenarios and properties, as `C1 P1 P3`.
    pub fn label(&self) -> String {
        let properties = self.properties.iter().map(ToString::to_string);
        self.scenarios.iter().map(ToString::to_string).chain(properties).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.label())
    }
}

/// What the suite proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    /// Mutual exclusion, timed: two guards of one name are never both held.
    P1,
    /// Mutual exclusion, fenced: the token orders writes whatever clocks and pauses do.
    P2,
    /// Token order: distinct, and rising in real-time order.
    P3,
    /// Crash freedom: a dead holder delays the next waiter for a bounded time.
    P4,
    /// No lost wake-up.
    P5,
    /// No orphan: an attempt without a grant leaves nothing.
    P6,
    /// No foreign release or renewal.
    P7,
    /// No renewal after the end of a hold.
    P8,
    /// Re-entry by owner.
    P9,
    /// First come, first served.
    P10,
    /// Bounded detection of a loss.
    P11,
    /// Truthful errors: unknown is never told as busy or granted.
    P12,
    /// No residue.
    P13,
    /// A fault of one lock does not end another.
    P14,
    /// Names and foreign data: independence, confinement, no secrets told.
    Security,
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What a case presupposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The harness can do this.
    Hook(Hook),
    /// The backend claims first come, first served.
    Fifo,
    /// Holds end when they are not renewed.
    Ttl,
    /// Holds live and die with their client's session.
    SessionLifetime,
    /// A lost session is told at once.
    SessionPushed,
    /// The case measures the machine's own time.
    RealTime,
    /// The library lacks it so far: the case says what.
    Library(&'static str),
}

impl Need {
    fn unmet(self, harness: &dyn Harness) -> Option<String> {
        let info = harness.info();
        let (met, reason) = match self {
            Self::Hook(hook) => {
                let why = harness.why_not(hook).map_or_else(String::new, |why| format!(": {why}"));
                (harness.hooks().contains(&hook), format!("the harness has no hook {hook:?}{why}"))
            }
            Self::Fifo => (info.queue == QueueKind::Fifo, "FIFO is not claimed".to_owned()),
            Self::Ttl => (
                info.lifetime != Lifetime::Process,
                "holds have no ttl: they end by release or with their process".to_owned(),
            ),
            Self::SessionLifetime => {
                (info.lifetime == Lifetime::Session, "holds do not live and die with a session".to_owned())
            }
            Self::SessionPushed => (
                info.loss == LossDetection::SessionPushed,
                "telling a lost session at once is not claimed".to_owned(),
            ),
            Self::RealTime => (harness.time() == Time::Real, "the store runs on a paused clock".to_owned()),
            Self::Library(what) => (false, what.to_owned()),
        };
        (!met).then_some(reason)
    }
}

impl Hook {
    /// The store that its use takes.
    fn sharing(self) -> Sharing {
        match self {
            Self::Processes
            | Self::Entries
            | Self::BareNotification
            | Self::Lifetimes
            | Self::EndSessionOfHolder
            | Self::EndSessionOfWaiter
            | Self::DeleteEntries
            | Self::WriteJunk
            | Self::WallClock
            | Self::Tls
            | Self::Secret
            // A link is one client's.
            | Self::HoldRequests
            | Self::SwallowReplies
            | Self::DropNotifications
            | Self::Reset
            | Self::Refuse
            | Self::DropReplies
            | Self::Delay
            | Self::Trickle
            | Self::HoldNotifications => Sharing::Shared,
            // Others' requests would be counted too.
            Self::Requests
            | Self::Counts
            | Self::Contents
            | Self::Freeze
            | Self::Restart
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
    /// Whether the case has said that it uses this hook.
    pub(crate) fn declares(&self, hook: Hook) -> bool {
        self.needs.contains(&Need::Hook(hook))
    }
}

/// A case of the function with its name.
macro_rules! case {
    ($name:ident: $($scenario:ident)+, $($property:ident)+ $(, needs $($need:expr),+)? $(; bugs $($bug:literal)+)?) => {
        $crate::case::Case {
            name: stringify!($name),
            scenarios: &[$(stringify!($scenario)),+],
            properties: &[$($crate::case::Property::$property),+],
            needs: &[$($($need),+)?],
            bugs: &[$($($bug),+)?],
            run: $crate::case::Run::Suite(|cx| Box::pin($name(cx))),
        }
    };
}
pub(crate) use case;

/// A [`Case`](crate::Case) that only one backend has: the async function of this name (with its type argument, where it
/// takes one), the scenarios that it stands for, the properties that it proves, and the bugs that it would have caught.
///
/// ```
/// # use lockkit_conformance::{Case, own_case};
/// async fn a_deaf_follower_is_found_out() -> anyhow::Result<()> {
///     Ok(())
/// }
///
/// async fn a_lost_reply_is_asked_for_again<Servers>() -> anyhow::Result<()> {
///     Ok(())
/// }
///
/// const CASES: [Case; 2] = [
///     own_case!(a_deaf_follower_is_found_out: Z7, P1 P11),
///     own_case!(a_lost_reply_is_asked_for_again<u8>: R1, P6 P12; bugs 52 55),
/// ];
/// assert_eq!(CASES[1].bugs, [52, 55]);
/// ```
#[macro_export]
macro_rules! own_case {
    ($name:ident $(<$of:ty>)?: $($scenario:ident)+, $($property:ident)+ $(; bugs $($bug:literal)+)?) => {
        $crate::Case::own(
            stringify!($name),
            &[$(stringify!($scenario)),+],
            &[$($crate::Property::$property),+],
            || ::std::boxed::Box::pin($name $(::<$of>)? ()),
        )
        .catching(&[$($($bug),+)?])
    };
}
