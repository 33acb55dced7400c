//! The Redis queue with modes of [decision 0032](../../../docs/decisions/0032-modes.md), on one master. Not implemented
//! yet.
//!
//! Two clients make two claims each on one lock. Each claim chooses its mode when it starts. The rule that admits
//! claims is that of [`modes`]. Here holders leave the queue: those before a claim are the holders and the waiters.
//!
//! * A script is one action together with its answer. The answer may be lost; then the request is repeated.
//! * Each holder has an entry with its own lifetime. It passes at any time, but not before its holder's own deadline.
//!   An entry whose lifetime has passed remains until a script drops it. A waiter's entry lapses when its client has
//!   died, or has stood still for long enough.
//! * A script that grants the lock to a waiter sends a message to its client, which may be lost. The waiter confirms
//!   when the message arrives.
//! * A renewal may be executed late, after the end of its hold.
//!
//! In the scenes "messages alone" no waiter confirms before a message.
//!
//! Left out, because the model of the queue has them: copies of an acquire that are executed late, late answers,
//! refusals, heartbeats of waiters, more lapsed waiters than one script drops, failovers. Left out as well: other
//! programs' locks, tries.

use crate::{
    few::Few,
    frame::{CLAIMS, ClaimNo, EVENTUALLY, Faults, NO_ORPHAN, TOKENS_RISE, Tokens, steps},
    modes::{self, IN_ORDER, LIMITS, Mode, READ_WRITE},
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

const SERVED: &str = "no script leaves a waiter that is admitted";

/// Waiters confirm after a message only.
const MESSAGES_ALONE: &str = "messages alone";

steps! {
    /// A claim heeds the limits of the holders as well as its own.
    HeedsLimitsOfHolders: LIMITS in "2 + 1, messages alone",
    /// A script counts the holders and adds one, not two scripts.
    CountsAndTakesAtOnce: LIMITS in "2 + 1, messages alone",
    /// A claim that would be admitted enters the queue if others wait.
    QueueBeforeNewcomers: IN_ORDER in "2 + 1, read-write, messages alone",
    /// A script grants the lock to all waiters that are admitted, not only to the first.
    ServesAll: SERVED in "2 + 1, read-write, messages alone",
    /// The end of a shared hold serves the queue.
    SharedReleaseServes: SERVED in "2 + 1, read-write, messages alone",
    /// So does the withdrawal of a waiter, although the lock is not free.
    WithdrawalServes: SERVED in "2 + 1, read-write, messages alone, cancel",
    /// A script drops the holders whose lifetime has passed before it counts.
    DropsExpired: EVENTUALLY in "2 + 1, read-write, death",
    /// Each holder has a lifetime of its own.
    LifetimePerHolder: LIMITS in "2 + 1, read-write, death",
    /// A renewal never adds a holder: it may be executed after the end of the hold.
    RenewalNeverAdds: NO_ORPHAN in "2 + 1, read-write, lost",
    /// A shared grant has a token of its own, above all earlier ones.
    SharedTokenRises: TOKENS_RISE in "2 + 1, read-write, messages alone",
    /// A waiter confirms now and then, also without a message.
    Recheck: EVENTUALLY in "2 + 1, read-write, lost",
    /// A client stops relying on a hold before its lifetime at the server has passed.
    DeadlineBeforeExpiry: LIMITS in "2 + 1, read-write, messages alone",
}

/// The model.
pub type RedisModes = Scope<Step>;

/// The state of the server and the claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    server: Server,
    claims: [Claim; CLAIMS],
    /// Renewals that are executed later.
    late: Few<Renewal, 2>,
    tokens: Tokens,
    faults: Faults,
    broken: Option<&'static str>,
}

/// The keys of the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    /// The holders' tokens by claim; 0 for none.
    holders: [Token; CLAIMS],
    /// The holders whose lifetime has passed.
    expired: [bool; CLAIMS],
    /// The token counter.
    counter: Token,
    queue: Few<ClaimNo, CLAIMS>,
    /// The waiters whose deadline has passed.
    lapsed: [bool; CLAIMS],
}

/// A claim. Its mode is kept as long as it has an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    mode: Mode,
    /// That it was granted the lock.
    message: Message,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Acquiring,
    /// Without `CountsAndTakesAtOnce`: it was counted, and takes the lock next.
    Counted,
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
struct Renewal {
    claim: ClaimNo,
    token: Token,
}

/// The answer of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Granted(Token),
    Counted,
    Queued,
    EntryGone,
    Done,
}

impl RedisModes {
    fn waiters_recheck(&self) -> bool {
        !self.is(MESSAGES_ALONE) && self.has(Step::Recheck)
    }
}

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut impl FnMut(Domain, &mut Rank)) {
        visit(TOKEN, &mut self.server.counter);
        self.server.holders.iter_mut().for_each(|token| visit(TOKEN, token));
        self.late.iter_mut().for_each(|renewal| visit(TOKEN, &mut renewal.token));
        self.tokens.each_rank(TOKEN, visit);
    }
}
