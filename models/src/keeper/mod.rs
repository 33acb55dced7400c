//! The life of a guard: `lockkit-core/src/keeper/{life, hold, attempt, reentry, session}.rs`.
//!
//! One client with two callers of one owner, who ask for one lock twice each. Other clients are not needed: whoever
//! believes to hold the lock must have the entry at the server. Holds live and die with the session (`Lifetime::Session`), as on etcd.
//!
//! * Every step under one mutex is one step here; between any two of them anything else may happen.
//! * Time is counted in ticks of half a ttl, as what is left of a lifetime: at the server, and as the client knows it. A
//!   beat is sent and executed in one step and answered in another, and remembers how long ago it was sent; it is sent
//!   where it can change something.
//! * A beat may be lost on its way, or answer for the session and not for the hold. So may a release.
//! * An operator may end the session. Its holds are then excused from exclusion until the client has heard of it.
//!
//! What a backend does to acquire and to withdraw is one step: that is the subject of the other models.

use stateright::{Model, Property};

use crate::explore::{Protocol, Removal};

mod life;
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
const ALL_ANSWERED: &str = "every caller is answered";

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
    /// The re-entry table knows the hold before the callers do.
    TableBeforeAnswers,
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
    /// Its hold passed its deadline.
    expired: bool,
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
    /// One of: the re-entry table knows it, the callers are answered.
    Told,
    /// Both.
    Settled,
    /// `keep_hold`.
    Keeping,
    /// `release_until_done`, and whether the claim starts again afterwards: the grant came too late.
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
    /// A caller asks for the lock, drops its ticket, drops its guard, looks at its guard.
    Ask(usize),
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
    /// The server executes the release, and answers.
    Release(usize),
    /// The release, or its answer, is lost.
    LoseRelease(usize, bool),
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

impl Protocol for Keeper {
    type Step = Step;
    const NAME: &'static str = "keeper: a guard's life";

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |asks, sessions, lost, revoked| Self { without: None, lost, revoked, asks, sessions };
        vec![
            ("2 x 2, one session", scene([2, 2], 1, 0, 0)),
            ("2 + 1, one session, lost", scene([2, 1], 1, 1, 0)),
            ("2 + 1, one session, revoked", scene([2, 1], 1, 0, 1)),
            ("1 + 1, lost", scene([1, 1], 2, 1, 0)),
            ("1 + 1, revoked", scene([1, 1], 2, 0, 1)),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let removal = |step, breaks, lost, revoked| Removal {
            step,
            model: Self { without: Some(step), lost, revoked, asks: [2, 1], sessions: 1 },
            breaks,
        };
        vec![
            removal(Step::DeadlineFromSending, BELIEF_IS_TRUE, 0, 0),
            removal(Step::LossIsLatched, LOST_IS_FINAL, 0, 0),
            removal(Step::NoRenewalOnceReleasing, NO_LATE_RENEWAL, 0, 0),
            removal(Step::UntakenGrantReleased, NO_ORPHAN, 0, 0),
            removal(Step::ReleaseRepeats, NO_ORPHAN, 1, 0),
            removal(Step::DeadHoldAbandons, DEAD_HOLD_ENDS, 1, 0),
            removal(Step::LateHoldSeesTheEnd, SESSION_END_IS_TOLD, 0, 1),
            removal(Step::NoJoinAfterGiveUp, TRUE_ANSWER, 0, 0),
            removal(Step::TableBeforeAnswers, NO_SELF_WAIT, 0, 0),
        ]
    }
}

impl Model for Keeper {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut sessions = [Session::default(); SESSIONS];
        sessions[0] = Session::opened();
        vec![State {
            entry: Entry::Free,
            sessions,
            current: Some(0),
            beat: Beat::None,
            table: Place::Empty,
            lives: Default::default(),
            callers: self.asks.map(|asks_left| Caller { asks_left, is: Is::Idle }),
            lost: self.lost,
            revoked: self.revoked,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for (number, caller) in state.callers.iter().enumerate() {
            match caller.is {
                Is::Idle if caller.asks_left > 0 => actions.push(Action::Ask(number)),
                Is::Idle => {}
                Is::Waiting(_) => actions.push(Action::Leave(number)),
                Is::Guard(_) => actions.extend([Action::Drop(number), Action::IsHeld(number)]),
            }
        }
        for number in 0..LIVES {
            state.actions_of_life(self, number, actions);
        }
        state.actions_of_sessions(self, actions);
        actions.push(Action::Tick);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Ask(caller) => state.ask(self, caller),
            Action::Leave(caller) => state.leave(caller),
            Action::Drop(caller) => state.drop_guard(caller),
            Action::IsHeld(caller) => state.look_at_guard(self, caller),
            Action::Live(life) => state.live(self, life),
            Action::Grant(life) => {
                state.entry = Entry::Of { life, session: state.lives[life].session };
                state.lives[life].phase = Phase::Granted;
            }
            Action::Release(life) => state.release(life),
            Action::LoseRelease(life, done) => {
                state.lost -= 1;
                if done {
                    state.take_entry_away(life);
                }
                if !self.has(Step::ReleaseRepeats) {
                    state.done(life);
                }
            }
            Action::SendBeat => state.send_beat(self),
            Action::ReceiveBeat => state.receive_beat(self, false),
            Action::LoseBeat => {
                state.lost -= 1;
                state.beat = Beat::None;
            }
            Action::ReceiveBeatOfSessionOnly => {
                state.lost -= 1;
                state.receive_beat(self, true);
            }
            Action::EndSession => {
                if let Some(session) = state.current.take() {
                    state.sessions[session].ended = true;
                }
            }
            Action::LoseAll(session) => state.lose_all(session),
            Action::OpenSession => {
                state.sessions[1] = Session::opened();
                state.current = Some(1);
            }
            Action::CloseSession(session) | Action::Expire(session) => state.end_at_server(session),
            Action::Revoke(session) => {
                state.revoked -= 1;
                state.sessions[session].revoked = true;
                state.end_at_server(session);
            }
            Action::Tick => state.tick(),
        }
        state.forget_what_is_over();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BELIEF_IS_TRUE, |_, state: &State| {
                (0..LIVES).all(|life| state.believes_rightly(life))
            }),
            Property::always(LOST_IS_FINAL, |_, state: &State| state.broken != Some(LOST_IS_FINAL)),
            Property::always(NO_LATE_RENEWAL, |_, state: &State| state.broken != Some(NO_LATE_RENEWAL)),
            Property::always(NO_ORPHAN, |_, state: &State| !state.has_orphan()),
            Property::always(DEAD_HOLD_ENDS, |_, state: &State| state.broken != Some(DEAD_HOLD_ENDS)),
            Property::always(SESSION_END_IS_TOLD, |_, state: &State| {
                state.lives.iter().all(|life| {
                    let settled = matches!(life.phase, Phase::Keeping);
                    !(settled && life.hold.is_held() && state.sessions[life.session].holds_lost)
                })
            }),
            Property::always(TRUE_ANSWER, |_, state: &State| state.broken != Some(TRUE_ANSWER)),
            Property::always(NO_SELF_WAIT, |_, state: &State| state.broken != Some(NO_SELF_WAIT)),
            Property::always(ALL_ANSWERED, |_, state: &State| {
                let forgotten = |caller: &Caller| matches!(caller.is, Is::Waiting(life) if state.lives[life].phase == Phase::Done);
                !state.callers.iter().any(forgotten)
            }),
            Property::sometimes("both callers share a hold", |_, state: &State| {
                state.lives.iter().any(|life| life.phase == Phase::Keeping && life.hold.guards == 2)
            }),
            Property::sometimes("a hold of the last session", |model, state: &State| {
                let held = |life: &Life| life.hold.is_held() && life.hold.guards > 0;
                state.lives.iter().any(|life| life.session == model.sessions - 1 && held(life))
            }),
        ]
    }
}

/// Callers.
impl State {
    fn ask(&mut self, model: &Keeper, caller: usize) {
        self.callers[caller].asks_left -= 1;
        match self.table {
            Place::Held(life) => {
                self.look(model, life);
                let hold = &mut self.lives[life].hold;
                if hold.phase == HoldPhase::Held {
                    hold.guards += 1;
                    self.callers[caller].is = Is::Guard(life);
                    return;
                }
            }
            Place::Pending(life) => {
                let Life { over, given_up, .. } = self.lives[life];
                let gives_up = given_up && model.has(Step::NoJoinAfterGiveUp);
                if !over && !gives_up {
                    self.callers[caller].is = Is::Waiting(life);
                    return;
                }
            }
            Place::Empty => {}
        }
        let guard_of =
            |caller: &Caller| matches!(caller.is, Is::Guard(life) if self.lives[life].hold.is_held());
        if self.callers.iter().any(guard_of) {
            self.broken = Some(NO_SELF_WAIT);
        }
        if let Some(life) = self.lives.iter().position(|life| life.phase == Phase::New) {
            self.lives[life].phase = Phase::Starting;
            self.table = Place::Pending(life);
            self.callers[caller].is = Is::Waiting(life);
        }
    }

    fn leave(&mut self, caller: usize) {
        let Is::Waiting(life) = std::mem::replace(&mut self.callers[caller].is, Is::Idle) else { return };
        if !self.callers.iter().any(|other| other.is == Is::Waiting(life)) {
            self.lives[life].given_up = true;
        }
    }

    fn drop_guard(&mut self, caller: usize) {
        let Is::Guard(life) = std::mem::replace(&mut self.callers[caller].is, Is::Idle) else { return };
        self.leave_hold(life);
    }

    fn leave_hold(&mut self, life: usize) {
        let hold = &mut self.lives[life].hold;
        hold.latch();
        hold.guards -= 1;
        if hold.phase == HoldPhase::Held && hold.guards == 0 {
            hold.phase = HoldPhase::Releasing;
        }
        if hold.guards == 0 && self.lives[life].phase == Phase::Done {
            self.lives[life].hold = Hold::default();
        }
    }

    fn look_at_guard(&mut self, model: &Keeper, caller: usize) {
        let Is::Guard(life) = self.callers[caller].is else { return };
        self.look(model, life);
        let hold = &mut self.lives[life].hold;
        match hold.is_held() {
            true if hold.seen_lost => self.broken = Some(LOST_IS_FINAL),
            true => {}
            // What is not latched may change again.
            false => hold.seen_lost |= hold.phase == HoldPhase::Held,
        }
    }

    /// Looks at the state of a hold, in which a deadline that has passed is a loss already.
    fn look(&mut self, model: &Keeper, life: usize) {
        if model.has(Step::LossIsLatched) {
            self.lives[life].hold.latch();
        }
    }
}

/// What the properties ask.
impl State {
    fn is_of(&self, number: usize) -> bool {
        matches!(self.entry, Entry::Of { life, .. } if life == number)
    }

    fn believes_rightly(&self, number: usize) -> bool {
        let life = &self.lives[number];
        let believes =
            life.hold.is_held() && self.callers.iter().any(|caller| caller.is == Is::Guard(number));
        !believes || self.is_of(number) || self.sessions[life.session].revoked
    }

    /// A hold that nobody has a share of, or an entry that nothing will take away.
    fn has_orphan(&self) -> bool {
        let unheld = |life: &Life| {
            life.phase == Phase::Keeping && life.hold.phase == HoldPhase::Held && life.hold.guards == 0
        };
        let left_behind = match self.entry {
            Entry::Of { life, session } => {
                self.lives[life].phase == Phase::Done && !self.sessions[session].ended
            }
            Entry::Free => false,
        };
        left_behind || self.lives.iter().any(unheld)
    }
}

impl Session {
    fn opened() -> Self {
        Self { alive: true, left_there: TTL, left: TTL, ..Self::default() }
    }
}

impl Hold {
    /// As a guard sees it at this moment.
    fn is_held(&self) -> bool {
        self.phase == HoldPhase::Held && self.left > 0
    }

    fn latch(&mut self) {
        if self.phase == HoldPhase::Held && self.left == 0 {
            self.phase = HoldPhase::Lost;
        }
    }

    fn lose(&mut self) {
        if self.phase == HoldPhase::Held {
            self.phase = HoldPhase::Lost;
        }
    }
}
