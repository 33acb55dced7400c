//! The Redis queue on one master: `lockkit-redis/src/scripts/{acquire, confirm, release, renew, beat}.lua`.
//!
//! Two clients with two claims each on one lock. A script is one step, its answer comes with it; or the answer is lost,
//! and the script has run or will run at any later time.
//!
//! * The lock's key expires at any time, but not before its holder's own deadline; a waiter's entry lapses when its
//!   client has died, or stood still for long enough.
//! * Any waiter may confirm at any time (its timers), so messages appear only where a step is taken out that needs them.
//! * A script drops one lapsed waiter at most (500 in the code). Where it leaves the lock to nobody, any waiter may go on.
//! * A failover goes back to an earlier state of the master. Exclusion is not promised any more then; tokens are, as long
//!   as the new master's clock is not behind by more than the pause between two grants.
//!
//! Left out: other programs' locks, tries, the race without a queue, grants that replicas must know of, several masters (see
//! the model of Redlock).

use crate::{
    few::Few,
    rank::{self, Domain, Rank, Ranked},
};

mod clients;
mod model;
mod property;
mod scenes;
mod scripts;

type Token = Rank;
/// Claims 0 and 1 are of one client, 2 and 3 of the other.
type ClaimNo = u8;

const TOKEN: Domain = 0;
const CLAIMS: usize = 4;
/// Lapsed waiters that a script drops at most.
const LAPSED_MAX: usize = 1;

const ONE_HOLDER: &str = "one holder at a time, without a failover";
const TOKENS_RISE: &str = "tokens are unique and rise";
const IN_ORDER: &str = "first come, first served";
const NO_FOREIGN_RELEASE: &str = "nobody releases another claim's lock";
const NO_STALE_RENEWAL: &str = "a beat renews no later grant of the same claim";
const NO_ORPHAN: &str = "no orphan at rest";
const NO_LOST_WAKEUP: &str = "no lost wake-up at rest";

/// The safety steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An acquire serves the queue before it takes the free lock.
    QueueBeforeNewcomers,
    /// And takes a place in it where that was not finished.
    UnservedIsNotFree,
    /// A token is not below the server's clock.
    TokenFromClock,
    /// A release deletes only what is its claim's.
    ReleaseChecksClaim,
    /// A release takes the claim out of the queue as well.
    ReleaseLeavesQueue,
    /// The beat of a hold compares the token as well as the claim.
    BeatChecksToken,
    /// The beat of a waiter never puts it into the queue.
    BeatNeverAdds,
    /// The message that a claim is next is no grant.
    ConfirmBeforeGrant,
    /// A waiter confirms now and then although nothing has told it to.
    Recheck,
    /// A client stops to believe in a hold before its key expires.
    DeadlineBeforeExpiry,
}

/// How often things may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    lost: u8,
    cancels: u8,
    /// Waiters whose entry lapses while they live.
    lapses: u8,
    deaths: u8,
    failovers: u8,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Redis {
    without: Option<Step>,
    claims: u8,
    faults: Faults,
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    server: Server,
    /// What a replica has that has fallen behind.
    replica: Option<Server>,
    has_failed_over: bool,
    claims: [Claim; CLAIMS],
    late: Few<Request, 3>,
    /// The highest token ever minted, which the clock is above, and the highest answered.
    minted_last: Token,
    token_last: Token,
    grants: u8,
    faults: Faults,
    broken: Option<&'static str>,
}

/// What the keys of the lock say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    lock: Option<(ClaimNo, Token)>,
    fence: Token,
    queue: Few<ClaimNo, CLAIMS>,
    /// Whose deadline has passed.
    lapsed: [bool; CLAIMS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    token: Token,
    floor: Token,
    /// A copy of its acquire ran after its end: what that has left ends with its ttl.
    excused: bool,
    /// Only where a step is taken out that needs it: the message is on its way, or has arrived.
    message: Message,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Acquiring,
    Waiting,
    Held,
    /// Released or withdrawn.
    Releasing,
    Ended,
    Dead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Message {
    #[default]
    None,
    Sent,
    Arrived,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: ClaimNo,
    script: Script,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Script {
    #[default]
    Acquire,
    Confirm,
    Beat,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Granted(Token),
    Queued,
    Gone,
    Done,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A caller asks for the lock.
    Start(ClaimNo),
    /// The claim's script runs and is answered.
    Run(ClaimNo),
    /// It runs, the answer is lost.
    LoseAnswer(ClaimNo),
    /// It will run later; its sender waits no longer.
    Delay(ClaimNo),
    /// A waiter's beat is delayed.
    DelayBeat(ClaimNo),
    /// A delayed script runs.
    RunLate(usize),
    /// The caller leaves.
    GiveUp(ClaimNo),
    /// The holder's beat.
    Renew(ClaimNo),
    /// The guard is dropped.
    Release(ClaimNo),
    /// The holder's deadline passes.
    TimeOut(ClaimNo),
    /// The lock's key expires.
    Expire,
    /// A waiter's deadline passes.
    Lapse(ClaimNo),
    /// A client dies.
    Die(ClaimNo),
    /// The message that a claim is next arrives.
    Deliver(ClaimNo),
    /// It is lost.
    LoseMessage(ClaimNo),
    /// A replica falls behind.
    FallBehind,
    /// It becomes the master.
    FailOver,
}

impl Redis {
    fn has(&self, step: Step) -> bool {
        self.without != Some(step)
    }

    fn sends_messages(&self) -> bool {
        !self.has(Step::Recheck) || !self.has(Step::ConfirmBeforeGrant)
    }
}

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut dyn FnMut(Domain, &mut Rank)) {
        let servers = std::iter::once(&mut self.server).chain(&mut self.replica);
        for server in servers {
            visit(TOKEN, &mut server.fence);
            server.lock.iter_mut().for_each(|(_, token)| visit(TOKEN, token));
        }
        for claim in &mut self.claims {
            visit(TOKEN, &mut claim.token);
            visit(TOKEN, &mut claim.floor);
        }
        visit(TOKEN, &mut self.minted_last);
        visit(TOKEN, &mut self.token_last);
    }
}
