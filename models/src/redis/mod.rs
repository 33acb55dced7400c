//! The Redis queue on one master: `lockkit-redis/src/scripts/{acquire, confirm, release, renew, beat}.lua`.
//!
//! Two clients with two claims each on one lock. A script is one step, its answer comes with it; or the answer is lost,
//! and the script has run or will run at any later time; or the answer is late, and the lock's key may have expired before.
//!
//! * The lock's key expires at any time, but not before its holder's own deadline; a waiter's entry lapses when its
//!   client has died, or stood still for long enough.
//! * Any waiter may confirm at any time (its timers): its message changes nothing but in scenes with messages, where one may be
//!   lost, and where a step is taken out that needs it.
//! * The server refuses a request (the user's rights or password have changed). A withdrawal that is refused as well is given
//!   up, and what the claim has left ends with its ttl.
//! * A renewal may be executed late, after the end of its hold. (That its answer comes late is a matter of the keeper's model.)
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
const NO_STALE_RENEWAL: &str = "a beat renews no other grant";
const NO_ORPHAN: &str = "no orphan at rest";
const NOT_TURNED_AWAY: &str = "nobody is turned away who has the lock or a place";
const IN_THE_END: &str = "in the end everybody is served";

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
    /// The beat of a hold looks whose lock it prolongs: it may be executed after the end of the hold.
    BeatChecksHolder,
    /// And compares the token as well as the claim.
    BeatChecksToken,
    /// The beat of a waiter never puts it into the queue.
    BeatNeverAdds,
    /// The message that a claim is next is no grant.
    ConfirmBeforeGrant,
    /// A waiter confirms now and then although nothing has told it to.
    Recheck,
    /// A confirm finds that its claim was handed the lock.
    ConfirmFindsGrant,
    /// A confirm serves the queue: nobody else does after a holder's death.
    ConfirmServes,
    /// A client stops to believe in a hold before its key expires.
    DeadlineBeforeExpiry,
    /// That deadline counts from the sending of the request: an answer that comes after it is no grant.
    DeadlineFromSending,
    /// A claim that is refused takes back what an earlier request of it may have left.
    RefusalWithdraws,
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
    /// Answers that are late.
    late: u8,
    /// Requests that the server refuses.
    refusals: u8,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Redis {
    without: Option<Step>,
    claims: u8,
    /// Whether waiters are told that they are next.
    notifies: bool,
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
    /// What it has left ends with its ttl: a copy of its acquire ran after its end, or its withdrawal was refused.
    excused: bool,
    /// The token in an answer that is late, and whether the key has expired since.
    answered: Token,
    expired: bool,
    /// Only where waiters are told: the message is on its way, or has arrived.
    message: Message,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Acquiring,
    Waiting,
    /// The lock is the claim's, and the answer that says so is on its way.
    Answered,
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
    /// Of a renewal.
    token: Token,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Script {
    #[default]
    Acquire,
    Confirm,
    Beat,
    Renew,
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
    /// A holder's beat is delayed.
    DelayRenewal(ClaimNo),
    /// A delayed script runs.
    RunLate(usize),
    /// The claim's script runs, and its answer is late.
    RunUnheard(ClaimNo),
    /// That answer arrives.
    Hear(ClaimNo),
    /// The server refuses the claim's request.
    Refuse(ClaimNo),
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
        self.notifies || !self.has(Step::ConfirmBeforeGrant)
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
            visit(TOKEN, &mut claim.answered);
        }
        self.late.iter_mut().for_each(|request| visit(TOKEN, &mut request.token));
        visit(TOKEN, &mut self.minted_last);
        visit(TOKEN, &mut self.token_last);
    }
}
