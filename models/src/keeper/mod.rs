//! The life of a guard: `lockkit-core/src/keeper/{life, hold, attempt, reentry, releases, session}.rs`.
//!
//! One client with two callers of one owner, who ask for one lock twice each: they wait for it, and in some scenes the
//! second one only tries. Other clients are not needed: whoever believes to hold the lock must have the entry at the
//! server. Holds live and die with the session (`Lifetime::Session`), as on etcd.
//!
//! * Every step under one mutex is one step here; between any two of them anything else may happen.
//! * Time is counted in ticks of half a ttl, as what is left of a lifetime: at the server, and as the client knows it. A
//!   beat is sent and executed in one step and answered in another, and remembers how long ago it was sent; it is sent
//!   where it can change something.
//! * A beat may be lost on its way, or answer for the session and not for the hold. So may a release.
//! * An operator may end the session. Its holds are then excused from exclusion until the client has heard of it.
//! * The server may refuse all releases, for good.
//!
//! What a backend does to acquire and to withdraw is one step: that is the subject of the other models. Left out: callers
//! with a deadline, the end of the client, and a session whose opening takes most of its ttl.

mod callers;
mod life;
mod model;
mod property;
mod scenes;
mod session;

/// Ticks of a lifetime.
const TTL: u8 = 2;
const CALLERS: usize = 2;
const LIVES: usize = 4;
const SESSIONS: usize = 2;

const BELIEF_IS_TRUE: &str = "whoever believes to hold the lock has the entry";
const LOST_IS_FINAL: &str = "lost is final";
const NO_LATE_RENEWAL: &str = "nothing renews a hold once its release has begun";
const NO_ORPHAN: &str = "no entry is kept that nobody holds";
const DEAD_HOLD_ENDS: &str = "a dead hold is not kept alive";
const SESSION_END_IS_TOLD: &str = "no hold outlives its session's end";
const TRUE_ANSWER: &str = "nobody who waits is told busy";
const NO_SELF_WAIT: &str = "no owner waits behind itself";
const LAST_RELEASE_ENDS: &str = "the last guard's release ends the hold";
const SHARE_IS_HELD: &str = "nobody is given a hold that is being released";
const ALL_ANSWERED: &str = "every caller is answered";
const IN_THE_END: &str = "in the end nobody waits, while there are sessions";

/// The safety steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A deadline counts from the sending of a beat, not from its answer.
    DeadlineFromSending,
    /// A deadline that was seen to pass is latched.
    LossIsLatched,
    /// A beat carries no hold that is being released.
    NoRenewalOnceReleasing,
    /// A grant that no caller takes is released.
    UntakenGrantReleased,
    /// A release is repeated until it is confirmed or the session is over.
    ReleaseRepeats,
    /// A hold that has passed its deadline makes the client give up the session.
    DeadHoldAbandons,
    /// A hold that enters the table looks whether its session has ended meanwhile.
    LateHoldSeesTheEnd,
    /// Nobody joins an attempt that gives up.
    NoJoinAfterGiveUp,
    /// The re-entry table learns of the hold in one step with the end of the attempt.
    TableWithAnswers,
    /// The shares of all callers are counted before one of them can leave.
    SharesCountedFirst,
    /// A try that is granted is shared with the owner's callers that wait.
    GrantServesTheOwner,
    /// An attempt whose session ends goes on in the next one.
    AttemptOutlivesSession,
    /// A release that is not confirmed for a ttl makes the client give up the session.
    RefusedReleaseAbandons,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Keeper {
    without: Option<Step>,
    /// Messages that may be lost, and sessions that an operator may end.
    lost: u8,
    revoked: u8,
    /// How often each caller asks.
    asks: [u8; CALLERS],
    /// The second caller only tries.
    tries: bool,
    /// The server refuses all releases.
    refuses: bool,
    /// Sessions that can be opened, one after the other.
    sessions: usize,
}

impl Keeper {
    fn has(&self, step: Step) -> bool {
        self.without != Some(step)
    }
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    entry: Entry,
    sessions: [Session; SESSIONS],
    /// The session that claims are made in.
    current: Option<usize>,
    beat: Beat,
    table: Place,
    lives: [Life; LIVES],
    callers: [Caller; CALLERS],
    lost: u8,
    revoked: u8,
    broken: Option<&'static str>,
}

/// Whose entry is at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Free,
    Of { life: usize, session: usize },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Session {
    /// At the server, what is left of its lifetime.
    alive: bool,
    left_there: u8,
    /// As the client knows.
    left: u8,
    abandoned: bool,
    ended: bool,
    /// `lose_all` has run.
    holds_lost: bool,
    revoked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Beat {
    None,
    Answered { age: u8, session: usize, hold: Option<(usize, Renewal)>, gone: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Renewal {
    Renewed,
    Gone,
}

/// The owner's place in the re-entry table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Empty,
    Pending(usize),
    Held(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Life {
    phase: Phase,
    session: usize,
    /// The attempt: nobody wants it any more, or everybody was answered.
    given_up: bool,
    over: bool,
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
    /// `is_current` has said yes.
    Current,
    /// The hold is in the table of holds.
    Inserted,
    /// It has looked whether its session has ended.
    Looked,
    /// The callers are answered, and the re-entry table knows nothing yet.
    Told,
    /// One caller has its share, and those of the others are not counted yet.
    Counting,
    /// `keep_hold`.
    Keeping,
    /// `give_back`, and whether the claim starts again afterwards: the grant came too late.
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
    /// A guard has been told that the lock is lost.
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
    is: Is,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Is {
    Idle,
    Waiting(usize),
    Guard(usize),
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A caller asks for the lock, and waits for it.
    Ask(usize),
    /// It asks for the lock, and only tries.
    Try(usize),
    /// It drops its ticket.
    Leave(usize),
    /// It drops its guard.
    Drop(usize),
    /// It asks its guard whether the lock is held.
    IsHeld(usize),
    /// The next step of a life task, by itself.
    Live(usize),
    /// The server grants the claim.
    Grant(usize),
    /// It answers that the lock is held: to a try.
    Busy(usize),
    /// The server executes the release, and answers.
    Release(usize),
    /// The release, or its answer, is lost.
    LoseRelease(usize, bool),
    /// The server has refused the release for a ttl.
    GiveUpRelease(usize),
    /// The session task sends a beat; the server executes it; the answer arrives, is lost, or says nothing of the hold.
    SendBeat,
    /// The answer arrives.
    ReceiveBeat,
    /// The beat or its answer is lost.
    LoseBeat,
    /// The answer says nothing of the hold.
    ReceiveBeatOfSessionOnly,
    /// The session task notices that the session is over, and then tells the holds.
    EndSession,
    /// It tells the holds.
    LoseAll(usize),
    /// The old session's end, and the next one.
    OpenSession,
    /// The server ends a session: closed, expired.
    CloseSession(usize),
    /// The lifetime is over at the server.
    Expire(usize),
    /// An operator ends it.
    Revoke(usize),
    /// Half a ttl passes.
    Tick,
}
