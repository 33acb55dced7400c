//! The faults of clients and servers.

use std::{fmt, time::Duration};

use serde::Serialize;

/// One fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Fault {
    /// Stops the next client that reads the registers of this lock, in its critical section.
    StopHolder { lock: usize, length: StopLength },
    /// Kills the next client that reads the registers of this lock, in its critical section.
    KillHolder { lock: usize },
    /// Stops the client in this slot.
    StopClient { slot: usize },
    /// Kills the client in this slot. Another one is started at the end of the step.
    KillClient { slot: usize },
    /// Cuts the client in this slot off from all servers.
    CutClient { slot: usize },
    /// A fault of a server.
    Server { fault: ServerFault, target: Target },
}

/// How long a holder is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum StopLength {
    /// Until another client has acquired the lock and written.
    Overtaken,
    /// For this many thousandths of a ttl.
    Thousandths(u32),
}

/// Which server a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Target {
    /// The leader or master at that time; the first server if there is none.
    Leader,
    Number(usize),
}

/// The faults that a server can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum ServerFault {
    /// It is killed, and restarted at the end of the step.
    Kill,
    /// Its process is stopped.
    Stop,
    /// It cannot reach the other servers, but clients can reach it.
    Partition,
    /// Messages to it from the other servers, or from it to them, are held back while the connections stay open.
    BlockPeers,
    /// Messages to it from the other servers, or from it to them, are delayed by this many milliseconds.
    DelayPeers(u32),
    /// Requests and replies of its clients are held back while their connections stay open.
    BlockClients,
    /// Requests and replies of its clients are delayed by this many milliseconds.
    DelayClients(u32),
    /// Another server becomes the leader.
    MoveLeader,
    /// Its wall clock is set forward by this many milliseconds, for good.
    ClockForward(u32),
    /// Its wall clock is set back by this many milliseconds, for good.
    ClockBack(u32),
    /// It loses its data.
    Wipe,
}

impl ServerFault {
    /// Whether the server must be restarted afterwards, which may need the others.
    pub(crate) fn needs_restart(self) -> bool {
        self == Self::Kill
    }

    /// Whether the fault has no duration and nothing must be undone.
    pub(crate) fn is_instant(self) -> bool {
        matches!(self, Self::MoveLeader | Self::ClockForward(_) | Self::ClockBack(_) | Self::Wipe)
    }

    /// Whether the store may end holds before their deadline. Exclusion is promised for later grants only then.
    pub(crate) fn ends_holds(self) -> bool {
        matches!(self, Self::ClockForward(_))
    }
}

impl Fault {
    /// Whether it is a fault of a client.
    pub(crate) fn is_of_client(self) -> bool {
        !matches!(self, Self::Server { .. })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopHolder { lock, length: StopLength::Overtaken } => {
                write!(f, "stop the holder of lock {lock} until it is overtaken")
            }
            Self::StopHolder { lock, length: StopLength::Thousandths(ttl) } => {
                write!(f, "stop the holder of lock {lock} for {:.2} ttl", f64::from(*ttl) / 1_000.0)
            }
            Self::KillHolder { lock } => write!(f, "kill the holder of lock {lock}"),
            Self::StopClient { slot } => write!(f, "stop client {slot}"),
            Self::KillClient { slot } => write!(f, "kill client {slot}"),
            Self::CutClient { slot } => write!(f, "cut off client {slot}"),
            Self::Server { fault, target } => match target {
                Target::Leader => write!(f, "{fault} the leader"),
                Target::Number(number) => write!(f, "{fault} server {number}"),
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
            Self::Partition => write!(f, "partition"),
            Self::BlockPeers => write!(f, "block peer traffic of"),
            Self::DelayPeers(ms) => write!(f, "delay peer traffic by {:.1} s of", seconds(ms)),
            Self::BlockClients => write!(f, "block client traffic of"),
            Self::DelayClients(ms) => write!(f, "delay client traffic by {:.1} s of", seconds(ms)),
            Self::MoveLeader => write!(f, "move leadership from"),
            Self::ClockForward(ms) => write!(f, "set the clock {:.1} s forward of", seconds(ms)),
            Self::ClockBack(ms) => write!(f, "set the clock {:.1} s back of", seconds(ms)),
            Self::Wipe => write!(f, "wipe"),
        }
    }
}
