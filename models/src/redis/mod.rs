//! The Redis queue on one master: `lockkit-redis/src/scripts/`.
//!
//! Two clients make two claims each on one lock. A script is one action together with its answer. If the answer is
//! lost, the script was executed or will be at any later time. If the answer is late, the lock's key may expire before
//! it.
//!
//! * The lock's key expires at any time, but not before its holder's own deadline. A waiter's entry lapses when its
//!   client has died, or has stood still for long enough.
//! * Any waiter may confirm at any time (its timers). A message to a waiter makes no difference, except in scenes with
//!   messages, where one may be lost, and where a step is removed that needs it.
//! * In scenes with pushes, the message grants. It carries the token, and each answer to a waiter carries the token
//!   counter, so that the client knows which of the two came first. An answer may arrive after a push that was sent later,
//!   and a push may arrive again at any later time, also after the hold that it granted.
//! * The server refuses a request (the user's rights or password have changed). A withdrawal that is refused as well is
//!   given up; what the claim has left ends with its ttl.
//! * A renewal may be executed late, after the end of its hold. (A late answer to it belongs to the keeper's model.)
//! * A script drops at most one lapsed waiter (500 in the code). If it finds no live waiter that way, any waiter may
//!   continue.
//! * A failover returns to an earlier state of the master. Exclusion is no longer promised then. Tokens are, as long as
//!   the new master's clock is not behind by more than the pause between two grants.
//!
//! Left out: other programs' locks, tries, the race without a queue, grants that replicas must acknowledge, several
//! masters (see the model of Redlock).

use crate::{
    few::Few,
    frame::{CLAIMS, ClaimNo, EVENTUALLY, Faults, IN_ORDER, NO_ORPHAN, TOKENS_RISE, Tokens, steps},
    rank::{self, Domain, Rank, Ranked},
    scope::Scope,
};

mod claim;
mod model;
mod property;
mod scenes;
mod scripts;

pub use self::model::Action;

type Token = Rank;

const TOKEN: Domain = 0;
/// Maximum number of lapsed waiters that one script drops.
const LAPSED_MAX: usize = 1;

const ONE_HOLDER: &str = "one holder at a time, without a failover";
const NO_FOREIGN_RELEASE: &str = "no claim releases another claim's lock";
const NO_STALE_RENEWAL: &str = "a heartbeat renews no other grant";
const NO_FORMER_GRANT: &str = "a claim that waits at the new master is not granted by the former one";
const NOT_TURNED_AWAY: &str = "no claim with the lock or a queue entry is rejected";

/// Waiters are notified that they are next.
const NOTIFIED: &str = "notified";
/// These messages grant.
const PUSHED: &str = "pushed";

steps! {
    /// An acquire serves the queue before it takes the free lock.
    QueueBeforeNewcomers: IN_ORDER in "2 x 2",
    /// An acquire enters the queue if it could not serve it to its end.
    UnservedQueueIsNotFree: IN_ORDER in "2 x 2, lapse",
    /// A token is not below the server's clock.
    TokenFromClock: TOKENS_RISE in "2 + 1, failover",
    /// A release deletes only the lock of its own claim.
    ReleaseChecksClaim: NO_FOREIGN_RELEASE in "2 + 1",
    /// A release removes the claim from the queue as well.
    ReleaseLeavesQueue: NO_ORPHAN in "2 + 1, cancel",
    /// The heartbeat of a hold checks whose lock it prolongs: it may be executed after the end of the hold.
    HeartbeatChecksHolder: NO_STALE_RENEWAL in "2 + 1, lost",
    /// It compares the token as well as the claim.
    HeartbeatChecksToken: NO_STALE_RENEWAL in "2 + 1, failover",
    /// The heartbeat of a waiter never puts it into the queue.
    HeartbeatNeverAdds: NO_ORPHAN in "2 + 1, lost, cancel",
    /// The message that a claim is next does not grant; only a confirm does.
    ConfirmBeforeGrant: ONE_HOLDER in "2 + 1",
    /// A waiter confirms now and then, also without a message.
    Recheck: EVENTUALLY in "2 + 1, notified, lost",
    /// A confirm finds that its claim was given the lock.
    ConfirmFindsGrant: NOT_TURNED_AWAY in "2 + 1",
    /// A confirm serves the queue: after a holder's death nothing else does.
    ConfirmServesQueue: EVENTUALLY in "2 + 1, death",
    /// A client stops relying on a hold before its key expires.
    DeadlineBeforeExpiry: ONE_HOLDER in "2 + 1",
    /// That deadline counts from the sending of the request: an answer that comes after it does not grant.
    DeadlineFromSending: ONE_HOLDER in "2 + 1, late answer",
    /// A refused claim withdraws what an earlier request of it may have left.
    RefusalWithdraws: NO_ORPHAN in "2 + 1, lost, refused",
    /// A push grants only if its token is above the counter in the last answer: then the lock was granted after it.
    PushAfterAnswer: ONE_HOLDER in "2 x 2, pushed, lost",
    /// The lifetime of a pushed grant counts from the sending of the request that had this answer.
    PushCountsFromAnswer: ONE_HOLDER in "2 + 1, pushed",
    /// A push grants only the claim that it names, not another one of its client.
    PushNamesClaim: ONE_HOLDER in "2 + 1, pushed, duplicate",
    /// A push grants only a claim that waits, not one whose hold has ended.
    PushGrantsWaiter: ONE_HOLDER in "2 + 1, pushed, duplicate",
    /// A push grants only if it is of the master that gave this answer.
    PushOfSameMaster: NO_FORMER_GRANT in "2 + 1, pushed, failover",
}

/// The model.
pub type Redis = Scope<Step>;

/// The state of the server, its replica and the claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    server: Server,
    /// The data of a replica that has fallen behind.
    replica: Option<Server>,
    has_failed_over: bool,
    claims: [Claim; CLAIMS],
    /// Requests whose senders no longer wait for the answer.
    late: Few<Request, 3>,
    /// A push that has arrived and will arrive again.
    copy: Option<Push>,
    /// The highest token that was ever created. The clock is above it.
    minted_last: Token,
    tokens: Tokens,
    faults: Faults,
    broken: Option<&'static str>,
}

/// The keys of the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    lock: Option<(ClaimNo, Token)>,
    /// The token counter.
    counter: Token,
    queue: Few<ClaimNo, CLAIMS>,
    /// The waiters whose deadline has passed.
    lapsed: [bool; CLAIMS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    /// What it has left ends with its ttl: a copy of its acquire ran after its end, or its withdrawal was refused.
    excused: bool,
    /// The token in an answer or a push that is late, and whether the key has expired since.
    late_token: Token,
    expired: bool,
    /// In scenes with messages: the message that it is next.
    message: Message,
    /// In scenes with pushes: the token counter in the last answer, and whether the new master gave that answer and sent
    /// that push.
    answered: Token,
    answered_by_new_master: bool,
    pushed_by_new_master: bool,
    /// The same of an answer to a waiter that is late.
    late_answer: Option<(Token, bool)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Acquiring,
    Waiting,
    /// The lock is the claim's, and the answer is on its way.
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

/// The message that grants the lock to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Push {
    claim: ClaimNo,
    token: Token,
    /// Whether the key has expired since.
    expired: bool,
    by_new_master: bool,
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
    /// The heartbeat of a waiter.
    Heartbeat,
    /// The heartbeat of a hold.
    Renew,
    Release,
}

/// The answer of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Granted(Token),
    Queued,
    EntryGone,
    Done,
}

impl Redis {
    fn sends_messages(&self) -> bool {
        self.is(NOTIFIED) || self.is(PUSHED) || !self.has(Step::ConfirmBeforeGrant)
    }
}

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut impl FnMut(Domain, &mut Rank)) {
        let servers = std::iter::once(&mut self.server).chain(&mut self.replica);
        for server in servers {
            visit(TOKEN, &mut server.counter);
            server.lock.iter_mut().for_each(|(_, token)| visit(TOKEN, token));
        }
        for claim in &mut self.claims {
            visit(TOKEN, &mut claim.late_token);
            visit(TOKEN, &mut claim.answered);
            claim.late_answer.iter_mut().for_each(|(token, _)| visit(TOKEN, token));
        }
        self.late.iter_mut().for_each(|request| visit(TOKEN, &mut request.token));
        self.copy.iter_mut().for_each(|push| visit(TOKEN, &mut push.token));
        visit(TOKEN, &mut self.minted_last);
        self.tokens.each_rank(TOKEN, visit);
    }
}
