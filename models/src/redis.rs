//! The Redis queue on one master: `lockkit-redis/src/scripts/{acquire, confirm, release, renew, beat}.lua`.
//!
//! Two clients with two claims each on one lock. A script is one step, its answer comes with it; or the answer is lost,
//! and the script has run or will run at any later time.
//!
//! * The lock's key expires at any time, but not before its holder's own deadline; a waiter's entry lapses when its
//!   client has died, or stood still for long enough.
//! * Any waiter may confirm at any time (its timers), so messages appear only where a step is taken out that needs them.
//! * A failover goes back to an earlier state of the master. Exclusion is not promised any more then; tokens are, as long
//!   as the new master's clock is not behind by more than the pause between two grants.
//!
//! Left out: other programs' locks, the race without a queue, several masters (see the model of Redlock).

use stateright::{Model, Property};

use crate::{
    explore::{Protocol, Removal},
    few::Few,
    rank::{self, Domain, Rank, Ranked},
};

type Token = Rank;
/// Claims 0 and 1 are of one client, 2 and 3 of the other.
type ClaimNo = u8;

const TOKEN: Domain = 0;
const CLAIMS: usize = 4;

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

impl Protocol for Redis {
    type Step = Step;
    const NAME: &'static str = "redis queue";

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, faults| Self { without: None, claims, faults };
        let none = Faults::default();
        vec![
            ("2 x 2, cancel, lapse", scene(4, Faults { cancels: 1, lapses: 1, ..none })),
            ("2 x 2, death", scene(4, Faults { deaths: 1, ..none })),
            ("2 + 1, two lost, cancel", scene(3, Faults { lost: 2, cancels: 1, ..none })),
            ("2 + 1, lost, lapse, death", scene(3, Faults { lost: 1, lapses: 1, deaths: 1, ..none })),
            ("2 + 1, lost, failover", scene(3, Faults { failovers: 1, lost: 1, ..none })),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let faults = Faults { failovers: 1, ..Faults::default() };
        vec![("2 x 2, failover", Self { without: None, claims: 4, faults })]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::default();
        let removal = |step, breaks, claims, faults| Removal {
            step,
            model: Self { without: Some(step), claims, faults },
            breaks,
        };
        let failover = Faults { failovers: 1, ..none };
        vec![
            removal(Step::QueueBeforeNewcomers, IN_ORDER, 4, none),
            removal(Step::TokenFromClock, TOKENS_RISE, 3, failover),
            removal(Step::ReleaseChecksClaim, NO_FOREIGN_RELEASE, 3, none),
            removal(Step::ReleaseLeavesQueue, NO_ORPHAN, 3, Faults { cancels: 1, ..none }),
            removal(Step::BeatChecksToken, NO_STALE_RENEWAL, 3, failover),
            removal(Step::BeatNeverAdds, NO_ORPHAN, 3, Faults { lost: 1, cancels: 1, ..none }),
            removal(Step::ConfirmBeforeGrant, ONE_HOLDER, 3, none),
            removal(Step::Recheck, NO_LOST_WAKEUP, 3, Faults { lost: 1, ..none }),
            removal(Step::DeadlineBeforeExpiry, ONE_HOLDER, 3, none),
        ]
    }
}

impl Model for Redis {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            server: Server::default(),
            replica: None,
            has_failed_over: false,
            claims: Default::default(),
            late: Few::default(),
            minted_last: 0,
            token_last: 0,
            grants: 0,
            faults: self.faults,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in 0..self.claims {
            state.actions_of(self, claim, actions);
        }
        actions.extend((0..state.late.len()).map(Action::RunLate));
        let believes = |(claim, token): (ClaimNo, Token)| {
            let holder = &state.claims[usize::from(claim)];
            holder.phase == Phase::Held && holder.token == token && self.has(Step::DeadlineBeforeExpiry)
        };
        if state.server.lock.is_some_and(|held| !believes(held)) {
            actions.push(Action::Expire);
        }
        match state.replica {
            None if state.faults.failovers > 0 => actions.push(Action::FallBehind),
            Some(_) => actions.push(Action::FailOver),
            None => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(claim) => {
                let floor = state.token_last;
                *state.claim(claim) = Claim { phase: Phase::Acquiring, floor, ..Claim::default() };
            }
            Action::Run(claim) => state.call(self, claim),
            Action::LoseAnswer(claim) => {
                state.faults.lost -= 1;
                let script = state.script_of(claim);
                state.run(self, Request { claim, script });
            }
            Action::Delay(claim) => state.delay(Request { claim, script: state.script_of(claim) }),
            Action::DelayBeat(claim) => state.delay(Request { claim, script: Script::Beat }),
            Action::RunLate(nth) => {
                let request = state.late.remove(nth);
                let over =
                    matches!(state.claim(request.claim).phase, Phase::Releasing | Phase::Ended | Phase::Dead);
                if request.script == Script::Acquire && over {
                    state.claim(request.claim).excused = true;
                }
                state.run(self, request);
            }
            Action::GiveUp(claim) => {
                state.faults.cancels -= 1;
                state.claim(claim).phase = Phase::Releasing;
            }
            Action::Renew(claim) => state.renew(self, claim),
            Action::Release(claim) | Action::TimeOut(claim) => state.claim(claim).phase = Phase::Releasing,
            Action::Expire => state.server.lock = None,
            Action::Lapse(claim) => {
                if state.claim(claim).phase != Phase::Dead && !state.claim(claim).excused {
                    state.faults.lapses -= 1;
                }
                state.server.lapsed[usize::from(claim)] = true;
            }
            Action::Die(claim) => {
                state.faults.deaths -= 1;
                let token = state.claim(claim).token;
                *state.claim(claim) = Claim { phase: Phase::Dead, token, ..Claim::default() };
            }
            Action::Deliver(claim) if self.has(Step::ConfirmBeforeGrant) => {
                state.claim(claim).message = Message::Arrived;
            }
            Action::Deliver(claim) => {
                state.claim(claim).message = Message::None;
                let token = state.minted_last;
                state.grant(claim, token);
            }
            Action::LoseMessage(claim) => {
                state.faults.lost -= 1;
                state.claim(claim).message = Message::None;
            }
            Action::FallBehind => {
                state.faults.failovers -= 1;
                state.replica = Some(state.server);
            }
            Action::FailOver => {
                state.server = state.replica.take().unwrap_or_default();
                state.has_failed_over = true;
            }
        }
        state.forget_old_tokens();
        rank::compress(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let holders = state.claims.iter().filter(|claim| claim.phase == Phase::Held).count();
                holders <= 1 || state.has_failed_over
            }),
            Property::always(TOKENS_RISE, |_, state: &State| state.broken != Some(TOKENS_RISE)),
            Property::always(IN_ORDER, |_, state: &State| state.broken != Some(IN_ORDER)),
            Property::always(NO_FOREIGN_RELEASE, |_, state: &State| state.broken != Some(NO_FOREIGN_RELEASE)),
            Property::always(NO_STALE_RENEWAL, |_, state: &State| state.broken != Some(NO_STALE_RENEWAL)),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            Property::always(NO_LOST_WAKEUP, |model, state: &State| {
                !state.is_at_rest() || !state.is_stuck(model)
            }),
            Property::sometimes("all claims are granted", |model, state: &State| {
                state.grants == model.claims
            }),
        ]
    }
}

/// Clients.
impl State {
    fn actions_of(&self, model: &Redis, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[usize::from(number)];
        let before_is_new =
            !number.is_multiple_of(2) && self.claims[usize::from(number) - 1].phase == Phase::New;
        match claim.phase {
            Phase::New if !before_is_new => actions.push(Action::Start(number)),
            Phase::New | Phase::Ended => {}
            Phase::Acquiring | Phase::Releasing => {
                actions.push(Action::Run(number));
                if self.faults.lost > 0 {
                    actions.extend([Action::LoseAnswer(number), Action::Delay(number)]);
                }
            }
            Phase::Waiting => {
                if model.has(Step::Recheck) || claim.message == Message::Arrived {
                    actions.push(Action::Run(number));
                    if self.faults.lost > 0 {
                        actions.extend([Action::LoseAnswer(number), Action::Delay(number)]);
                    }
                }
                if self.faults.lost > 0 {
                    actions.push(Action::DelayBeat(number));
                }
            }
            Phase::Held => {
                actions.extend([Action::Renew(number), Action::Release(number)]);
            }
            Phase::Dead => {}
        }
        let lives = matches!(claim.phase, Phase::Acquiring | Phase::Waiting | Phase::Held);
        if self.faults.cancels > 0 && lives && claim.phase != Phase::Held {
            actions.push(Action::GiveUp(number));
        }
        if self.faults.deaths > 0 && lives {
            actions.push(Action::Die(number));
        }
        let may_lapse = claim.phase == Phase::Dead || claim.excused || self.faults.lapses > 0;
        if may_lapse && self.server.queue.contains(&number) && !self.server.lapsed[usize::from(number)] {
            actions.push(Action::Lapse(number));
        }
        if claim.message == Message::Sent && claim.phase == Phase::Waiting {
            actions.push(Action::Deliver(number));
            if self.faults.lost > 0 {
                actions.push(Action::LoseMessage(number));
            }
        }
    }

    fn claim(&mut self, claim: ClaimNo) -> &mut Claim {
        &mut self.claims[usize::from(claim)]
    }

    fn script_of(&self, claim: ClaimNo) -> Script {
        match self.claims[usize::from(claim)].phase {
            Phase::Acquiring => Script::Acquire,
            Phase::Releasing => Script::Release,
            _ => Script::Confirm,
        }
    }

    fn delay(&mut self, request: Request) {
        self.faults.lost -= 1;
        self.late.push(request);
        self.late.sort_unstable();
    }

    fn call(&mut self, model: &Redis, number: ClaimNo) {
        let script = self.script_of(number);
        match self.run(model, Request { claim: number, script }) {
            Answer::Granted(token) => self.grant(number, token),
            Answer::Queued => {
                let claim = self.claim(number);
                claim.phase = Phase::Waiting;
                if claim.message == Message::Arrived {
                    claim.message = Message::None;
                }
            }
            // `EntryGone`: withdrawn, and claimed anew by the keeper.
            Answer::Gone => self.claim(number).phase = Phase::Releasing,
            Answer::Done => {
                let Claim { token, excused, .. } = *self.claim(number);
                *self.claim(number) = Claim { phase: Phase::Ended, token, excused, ..Claim::default() };
            }
        }
    }

    fn grant(&mut self, number: ClaimNo, token: Token) {
        let floor = std::mem::take(&mut self.claim(number).floor);
        let known = self.claims.iter().any(|other| other.token == token);
        if token <= floor || known {
            self.broken = Some(TOKENS_RISE);
        }
        let claim = self.claim(number);
        (claim.phase, claim.token, claim.message) = (Phase::Held, token, Message::None);
        self.token_last = self.token_last.max(token);
        self.grants += 1;
    }

    /// The beat of a hold.
    fn renew(&mut self, model: &Redis, number: ClaimNo) {
        let token = self.claim(number).token;
        let lock = self.server.lock.filter(|(claim, _)| *claim == number);
        match lock.map(|(_, its)| its) {
            Some(its) if its == token => {}
            Some(_) if !model.has(Step::BeatChecksToken) => self.broken = Some(NO_STALE_RENEWAL),
            _ => self.claim(number).phase = Phase::Releasing,
        }
    }

    fn forget_old_tokens(&mut self) {
        let acquires = |claim: &&Claim| matches!(claim.phase, Phase::Acquiring | Phase::Waiting);
        let floor = self.claims.iter().filter(acquires).map(|claim| claim.floor).min().unwrap_or(Token::MAX);
        let over = |claim: &&mut Claim| matches!(claim.phase, Phase::Ended | Phase::Dead);
        for claim in self.claims.iter_mut().filter(over).filter(|claim| claim.token <= floor) {
            claim.token = 0;
        }
    }
}

/// The scripts.
impl State {
    fn run(&mut self, model: &Redis, Request { claim, script }: Request) -> Answer {
        match script {
            Script::Acquire => self.run_acquire(model, claim),
            Script::Confirm => self.run_confirm(model, claim),
            Script::Beat => self.run_beat(model, claim),
            Script::Release => self.run_release(model, claim),
        }
    }

    fn run_acquire(&mut self, model: &Redis, claim: ClaimNo) -> Answer {
        if model.has(Step::QueueBeforeNewcomers) {
            self.serve(model);
        }
        if let Some(token) = self.is_mine(claim) {
            return Answer::Granted(token);
        }
        if self.server.lock.is_none() {
            if self.server.queue.iter().any(|other| *other != claim && self.is_waiting(*other)) {
                self.broken = Some(IN_ORDER);
            }
            return Answer::Granted(self.give_to(model, claim));
        }
        if !self.server.queue.contains(&claim) {
            self.server.queue.push(claim);
        }
        self.server.lapsed[usize::from(claim)] = false;
        Answer::Queued
    }

    fn run_confirm(&mut self, model: &Redis, claim: ClaimNo) -> Answer {
        self.serve(model);
        if let Some(token) = self.is_mine(claim) {
            return Answer::Granted(token);
        }
        if self.server.queue.contains(&claim) {
            self.server.lapsed[usize::from(claim)] = false;
            return Answer::Queued;
        }
        Answer::Gone
    }

    fn run_beat(&mut self, model: &Redis, claim: ClaimNo) -> Answer {
        if self.server.queue.contains(&claim) {
            self.server.lapsed[usize::from(claim)] = false;
        } else if !model.has(Step::BeatNeverAdds) {
            self.server.queue.push(claim);
        }
        Answer::Queued
    }

    fn run_release(&mut self, model: &Redis, claim: ClaimNo) -> Answer {
        if model.has(Step::ReleaseLeavesQueue) {
            self.leave_queue(claim);
        }
        let mine = self.is_mine(claim).is_some();
        if mine || !model.has(Step::ReleaseChecksClaim) {
            if !mine && self.server.lock.is_some() {
                self.broken = Some(NO_FOREIGN_RELEASE);
            }
            self.server.lock = None;
        }
        self.serve(model);
        Answer::Done
    }

    fn is_mine(&self, claim: ClaimNo) -> Option<Token> {
        self.server.lock.filter(|(holder, _)| *holder == claim).map(|(_, token)| token)
    }

    fn leave_queue(&mut self, claim: ClaimNo) {
        if let Some(nth) = self.server.queue.iter().position(|waiter| *waiter == claim) {
            self.server.queue.remove(nth);
        }
        self.server.lapsed[usize::from(claim)] = false;
    }

    /// Hands the free lock to the first waiter that is alive, and drops the dead ones before it.
    fn serve(&mut self, model: &Redis) {
        while self.server.lock.is_none() {
            let Some(head) = self.server.queue.first().copied() else { return };
            let lapsed = self.server.lapsed[usize::from(head)];
            self.leave_queue(head);
            if !lapsed {
                self.give_to(model, head);
                if model.sends_messages() {
                    self.claim(head).message = Message::Sent;
                }
            }
        }
    }

    fn give_to(&mut self, model: &Redis, claim: ClaimNo) -> Token {
        let by_counter = self.server.fence + 1;
        // The clock is ahead of every token that was ever minted.
        let by_clock = if model.has(Step::TokenFromClock) { self.minted_last + 1 } else { 0 };
        let token = by_counter.max(by_clock);
        self.minted_last = self.minted_last.max(token);
        self.server.fence = token;
        self.server.lock = Some((claim, token));
        token
    }
}

/// What the properties ask.
impl State {
    fn is_waiting(&self, claim: ClaimNo) -> bool {
        self.claims[usize::from(claim)].phase == Phase::Waiting && !self.server.lapsed[usize::from(claim)]
    }

    fn is_at_rest(&self) -> bool {
        let rests = |claim: &Claim| {
            let told = claim.phase == Phase::Waiting && claim.message != Message::None;
            !told && !matches!(claim.phase, Phase::Acquiring | Phase::Releasing)
        };
        self.late.is_empty() && self.claims.iter().all(rests)
    }

    fn has_orphan(&self) -> bool {
        let left = |claim: ClaimNo| {
            let owner = &self.claims[usize::from(claim)];
            owner.phase == Phase::Ended && !owner.excused && !self.has_failed_over
        };
        self.server.lock.is_some_and(|(claim, _)| left(claim))
            || self.server.queue.iter().any(|claim| left(*claim))
    }

    /// Whether somebody waits for a lock that nobody holds or will lose by itself, and no waiter has a reason to ask.
    fn is_stuck(&self, model: &Redis) -> bool {
        let free = match self.server.lock {
            None => true,
            Some((claim, _)) => self.claims[usize::from(claim)].phase == Phase::Waiting,
        };
        let waits = self.claims.iter().any(|claim| claim.phase == Phase::Waiting);
        let asks = model.has(Step::Recheck);
        free && waits && !asks
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
