//! What is done to clients and servers.

use std::{fmt, time::Duration};

use serde::Serialize;

/// One fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Fault {
    /// Whoever reads the registers of this lock next is stopped in its critical section.
    StopHolder { lock: usize, until: Until },
    /// Whoever reads the registers of this lock next is killed in its critical section.
    KillHolder { lock: usize },
    /// The client in this place stands still.
    StopClient { slot: usize },
    /// The client in this place is killed; another one comes when the step is over.
    KillClient { slot: usize },
    /// The client in this place reaches no server.
    CutClient { slot: usize },
    /// Something happens to the servers.
    Server { fault: ServerFault, member: Member },
}

/// How long a stopped holder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Until {
    /// Until another client has taken the lock over, and written.
    Overtaken,
    /// So many thousandths of a ttl.
    Thousandths(u32),
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Member {
    /// The leader or master at that time; the first one where none leads.
    Leader,
    Number(usize),
}

/// What happens to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum ServerFault {
    /// It is killed, and started again when the step is over.
    Kill,
    /// It stands still.
    Stop,
    /// It does not reach the other servers, but clients do reach it.
    Cut,
    /// It hears nothing of the other servers, or they nothing of it, while their connections stay open.
    Deafen,
    /// It hears the others so much later, or they it, in milliseconds.
    Delay(u32),
    /// Its clients are not heard, and hear nothing, while their connections stay open.
    Silence,
    /// It and its clients hear each other so much later, in milliseconds.
    Slow(u32),
    /// Another one leads.
    MoveLeader,
    /// Its wall clock is put forward by so many milliseconds, and stays so.
    ClockForward(u32),
    /// Its wall clock is put back by so many milliseconds, and stays so.
    ClockBack(u32),
    /// It loses its data.
    Wipe,
}

impl ServerFault {
    /// Whether the server has to be started again afterwards, which may need the others.
    pub(crate) fn needs_restart(self) -> bool {
        self == Self::Kill
    }

    /// Whether nothing has to be made good.
    pub(crate) fn is_over_at_once(self) -> bool {
        matches!(self, Self::MoveLeader | Self::ClockForward(_) | Self::ClockBack(_) | Self::Wipe)
    }

    /// Whether the store may end holds before their holders know, so that exclusion is promised for later grants only.
    pub(crate) fn ends_holds(self) -> bool {
        matches!(self, Self::ClockForward(_))
    }
}

impl Fault {
    /// Whether it is one of a client.
    pub(crate) fn is_of_client(self) -> bool {
        !matches!(self, Self::Server { .. })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopHolder { lock, until: Until::Overtaken } => {
                write!(f, "stop the holder of lock {lock} until it is overtaken")
            }
            Self::StopHolder { lock, until: Until::Thousandths(ttl) } => {
                write!(f, "stop the holder of lock {lock} for {:.2} ttl", f64::from(*ttl) / 1_000.0)
            }
            Self::KillHolder { lock } => write!(f, "kill the holder of lock {lock}"),
            Self::StopClient { slot } => write!(f, "stop client {slot}"),
            Self::KillClient { slot } => write!(f, "kill client {slot}"),
            Self::CutClient { slot } => write!(f, "cut client {slot} off"),
            Self::Server { fault, member } => match member {
                Member::Leader => write!(f, "{fault} the leader"),
                Member::Number(number) => write!(f, "{fault} server {number}"),
            },
        }
    }
}

impl fmt::Display for ServerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ms: &u32| Duration::from_millis(u64::from(*ms)).as_secs_f64();
        match self {
            Self::Kill => write!(f, "kill"),
            Self::Stop => write!(f, "stop"),
            Self::Cut => write!(f, "cut off from the others"),
            Self::Deafen => write!(f, "deafen"),
            Self::Delay(ms) => write!(f, "delay by {:.1} s", seconds(ms)),
            Self::Silence => write!(f, "cut off from clients"),
            Self::Slow(ms) => write!(f, "clients {:.1} s late at", seconds(ms)),
            Self::MoveLeader => write!(f, "replace"),
            Self::ClockForward(ms) => write!(f, "clock {:.1} s forward at", seconds(ms)),
            Self::ClockBack(ms) => write!(f, "clock {:.1} s back at", seconds(ms)),
            Self::Wipe => write!(f, "wipe"),
        }
    }
}
