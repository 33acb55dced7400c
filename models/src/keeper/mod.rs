//! A hold in the keeper: `lockkit-core/src/keeper/`.
//!
//! One client has two callers of one owner, which ask for one lock twice each. They wait for it; in some scenes the
//! second caller only tries. Other clients are not needed: a caller that believes to hold the lock must have the entry
//! at the server. Holds end with the session (`Lifetime::Session`), as on etcd.
//!
//! * Every step under one mutex is one action here. Between any two actions anything else may happen.
//! * Time is counted in ticks of half a ttl, as the rest of a lifetime: at the server, and as the client knows it. A
//!   heartbeat is sent and executed in one action and answered in another, and remembers how long ago it was sent. It
//!   is sent only where it can change something.
//! * A heartbeat may be lost, or its answer may name the session and not the hold. A release may be lost, too.
//! * An operator may end the session. Its holds are exempt from exclusion until the client has noticed.
//! * The server may refuse all releases for good.
//!
//! What a backend does to acquire and to withdraw is one action: the other models cover that. Left out: callers with a
//! time limit, the close of the client, and a session whose opening takes most of its ttl.

mod callers;
mod claim_task;
mod model;
mod property;
mod scenes;
mod session_task;

pub use self::model::Action;

use crate::{
    frame::{Faults, steps},
    scope::Scope,
};

/// Ticks of a lifetime.
const TTL: u8 = 2;
const CALLERS: usize = 2;
const TASKS: usize = 4;
const SESSIONS: usize = 2;

const BELIEF_IS_TRUE: &str = "a caller that believes to hold the lock has the entry";
const LOST_IS_FINAL: &str = "lost is final";
const NO_LATE_RENEWAL: &str = "nothing renews a hold once its release has begun";
const NO_ORPHAN: &str = "no entry remains without a holder";
const DEAD_HOLD_ENDS: &str = "no heartbeat keeps the entry of a dead hold alive";
const SESSION_END_ENDS_HOLDS: &str = "no hold outlives its session";
const TRUE_ANSWER: &str = "no waiting caller is answered busy";
const NO_SELF_WAIT: &str = "no owner waits behind itself";
const LAST_RELEASE_ENDS: &str = "the last guard's release ends the hold";
const SHARE_IS_HELD: &str = "no caller gets a hold that is being released";
const ALL_ANSWERED: &str = "every caller is answered";
const EVENTUALLY: &str = "eventually no caller waits, while there are sessions";

/// Only one session can be opened, not two one after the other.
const ONE_SESSION: &str = "one session";
/// The second caller only tries.
const SECOND_TRIES: &str = "the second tries";
/// The server refuses all releases.
const RELEASES_REFUSED: &str = "releases refused";

steps! {
    /// A deadline counts from the sending of a heartbeat, not from its answer.
    DeadlineFromSending: BELIEF_IS_TRUE in "2 + 1, one session",
    /// A deadline that was seen to pass is latched.
    LossIsLatched: LOST_IS_FINAL in "2 + 1, one session",
    /// A heartbeat carries no hold that is being released.
    NoRenewalOnceReleasing: NO_LATE_RENEWAL in "2 + 1, one session",
    /// A grant that no caller takes is released.
    UntakenGrantReleased: NO_ORPHAN in "2 + 1, one session",
    /// A release is repeated until it is confirmed or the session has ended.
    ReleaseRepeats: NO_ORPHAN in "2 + 1, one session, lost",
    /// A hold that has passed its deadline makes the client abandon the session.
    DeadHoldEndsSession: DEAD_HOLD_ENDS in "2 + 1, one session, lost",
    /// A new hold checks, once it is in the table, whether its session has ended meanwhile.
    NewHoldChecksSession: SESSION_END_ENDS_HOLDS in "2 + 1, one session, revoked",
    /// No caller joins an attempt that gives up.
    NoJoinAfterGiveUp: TRUE_ANSWER in "2 + 1, one session",
    /// The re-entry table gets the hold in the same step that ends the attempt.
    TableUpdatedWithAnswers: NO_SELF_WAIT in "2 + 1, one session",
    /// The shares of all callers are counted before one of them can leave.
    SharesCountedFirst: SHARE_IS_HELD in "2 + 1, one session",
    /// A try that is granted is shared with the owner's waiting callers.
    GrantServesTheOwner: NO_SELF_WAIT in "2 + 1, the second tries, one session",
    /// An attempt whose session ends continues in the next one.
    AttemptOutlivesSession: EVENTUALLY in "1 + 1, revoked",
    /// A release that is not confirmed for a ttl makes the client abandon the session.
    RefusedReleaseEndsSession: NO_ORPHAN in "2 + 1, releases refused, one session",
}

/// The model.
pub type Keeper = Scope<Step>;

impl Keeper {
    fn sessions(&self) -> usize {
        if self.is(ONE_SESSION) { 1 } else { 2 }
    }
}

/// The state of the server, the client's tasks and the callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    entry: ServerEntry,
    sessions: [Session; SESSIONS],
    /// The session that claims are made in.
    current: Option<usize>,
    heartbeat: Heartbeat,
    table: OwnerEntry,
    tasks: [ClaimTask; TASKS],
    callers: [Caller; CALLERS],
    faults: Faults,
    broken: Option<&'static str>,
}

/// The lock's entry at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ServerEntry {
    Free,
    Of { task: usize, session: usize },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Session {
    /// At the server: whether it exists, and the rest of its lifetime.
    alive: bool,
    left_there: u8,
    /// The rest of its lifetime as the client knows it.
    left: u8,
    abandoned: bool,
    ended: bool,
    /// `lose_all` has run.
    holds_lost: bool,
    revoked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Heartbeat {
    None,
    Answered { age: u8, session: usize, hold: Option<(usize, Renewal)>, gone: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Renewal {
    Renewed,
    Gone,
}

/// The owner's entry in the re-entry table: its waiting attempt, or its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OwnerEntry {
    Empty,
    Waiting(usize),
    Held(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ClaimTask {
    phase: Phase,
    session: usize,
    /// All callers of the attempt have left.
    given_up: bool,
    /// All callers of the attempt were answered.
    answered: bool,
    /// It asks once, and is not in the table.
    tries: bool,
    /// Its hold passed its deadline.
    expired: bool,
    /// Ticks since its release began.
    releasing_for: u8,
    hold: Hold,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    /// Waits for a session.
    Starting,
    Acquiring,
    /// The server has granted; the answer is on its way.
    Granted,
    /// `is_current` has returned true.
    Current,
    /// The hold is in the table of holds.
    Inserted,
    /// The hold has checked whether its session has ended.
    Checked,
    /// The callers are answered, and the re-entry table does not have the hold yet.
    Answered,
    /// One caller has its share, and those of the others are not counted yet.
    Counting,
    /// `keep_hold`.
    Keeping,
    /// `release`. `again`: the grant came too late, and the claim starts again afterwards.
    Releasing {
        again: bool,
    },
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Hold {
    phase: HoldPhase,
    guards: u8,
    left: u8,
    /// A guard has reported the loss.
    seen_lost: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum HoldPhase {
    #[default]
    None,
    Held,
    Releasing,
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Caller {
    asks_left: u8,
    state: CallerState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CallerState {
    Idle,
    Waiting(usize),
    Guard(usize),
}

impl Caller {
    /// The task whose outcome the caller waits for.
    fn waits_for(&self) -> Option<usize> {
        if let CallerState::Waiting(task) = self.state { Some(task) } else { None }
    }

    /// The task whose hold the caller has a share of.
    fn has_guard_of(&self) -> Option<usize> {
        if let CallerState::Guard(task) = self.state { Some(task) } else { None }
    }
}
