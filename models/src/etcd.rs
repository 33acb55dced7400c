//! The etcd queue: `lockkit-etcd/src/{acquire, release, txn, claims, watch, spare}.rs`.
//!
//! Two clients, a lease each, with two claims each on one lock; the claims of a client run side by side or one after
//! the other, and then the later one may use the key of the earlier one again.
//!
//! * An enqueue is executed and answered in two steps, the end of a claim is sent and executed in two, with anything in
//!   between. When a reply is lost, its sender gives up waiting, and the request is executed at any later time, or was
//!   already.
//! * Mails come in order over the watch; any of them may be lost. News of a predecessor's end only make a waiter look
//!   earlier, and a look may come at any time (the re-check), so they appear only where that step is taken out.
//! * The read for the successor may be answered by a member that lags behind.
//! * The end of a lease deletes all of its keys at one revision. A change of leader only makes it later: it comes at any
//!   time after the client's own deadline, or never. An operator deletes any key at any time.
//!
//! Left out: other clients of the queue, sessions after the first, compaction (it loses mails, as above).

use stateright::{Model, Property};

use crate::{
    explore::{Protocol, Removal},
    few::Few,
    rank::{self, Domain, Rank, Ranked},
};

/// A revision of the store; 0 for none. Create revisions, those of epochs and those that become tokens are never
/// compared with each other: three domains (and one per epoch key).
type Revision = Rank;

const CREATED: Domain = 0;
const TOKEN: Domain = 1;
const EPOCH: Domain = 2;

const CLIENTS: usize = 2;
const CLAIMS: usize = 4;

const ONE_HOLDER: &str = "one holder at a time";
const TOKENS_RISE: &str = "tokens are unique and rise";
const IN_ORDER: &str = "first come, first served";
const NO_FOREIGN_DELETE: &str = "nobody deletes another claim's key";
const NO_ORPHAN: &str = "no orphan at rest";
const NO_LOST_WAKEUP: &str = "no lost wake-up at rest";

/// The safety steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A claim that ends with copies of its enqueue unanswered moves the epoch, which every copy compares.
    EpochFence,
    /// So does one whose key was found to be gone already when it left.
    FenceWhenGone,
    /// Every claim has a key that no other claim has at the same time.
    KeyPerClaim,
    /// A key that a request left in doubt is not used again.
    DoubtfulKeyRetired,
    /// A mail counts only for the create revision that it names.
    MailNamesIncarnation,
    /// The end of the predecessor is a reason to look, not a grant.
    LookBeforeGrant,
    /// A look finds the own key as well as nobody in front of it.
    LookFindsOwnKey,
    /// A waiter looks now and then although nothing has told it to.
    Recheck,
    /// A try is queued only when nobody is in the queue.
    TryFindsQueueEmpty,
    /// A client stops to believe in its holds before the server ends its lease.
    DeadlineBeforeExpiry,
}

/// How often things may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    /// Replies and mails that are lost.
    lost: u8,
    /// Callers who give up.
    cancels: u8,
    /// Keys that an operator deletes.
    deletes: u8,
    /// Clients whose deadline passes.
    lapses: u8,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Etcd {
    without: Option<Step>,
    /// How many of A1, A2, B1, B2 there are.
    claims: usize,
    /// Whether the last one is a try.
    tries: bool,
    faults: Faults,
}

/// One of the claims A1, A2 (of one client), B1, B2 (of the other).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimNo(u8);

impl ClaimNo {
    fn all() -> impl Iterator<Item = Self> {
        (0..CLAIMS as u8).map(Self)
    }
    fn index(self) -> usize {
        usize::from(self.0)
    }
    fn client(self) -> usize {
        self.index() / 2
    }
    fn is_first(self) -> bool {
        self.0.is_multiple_of(2)
    }
}

impl std::fmt::Debug for ClaimNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(["A1", "A2", "B1", "B2"][self.index()])
    }
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// As far as tokens are made of it.
    revision: Revision,
    /// The highest create revision and the highest of each epoch that are still known anywhere.
    created_last: Revision,
    epoch_last: [Revision; CLIENTS],
    /// The queue: keys named after the claim that used them first.
    keys: [Option<Key>; CLAIMS],
    /// The mod revisions of the epoch keys, 0 when gone.
    epochs: [Revision; CLIENTS],
    /// Mails on their way, the oldest first.
    mails: [Few<Mail, 4>; CLIENTS],
    clients: [Client; CLIENTS],
    claims: [Claim; CLAIMS],
    /// Requests for whose replies nobody waits any more.
    strays: Few<Request, 4>,
    faults: Faults,
    /// The highest token that was answered, and how many were.
    token_last: Revision,
    grants: u8,
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    created: Revision,
    /// Whose enqueue created it.
    by: ClaimNo,
}

/// A key with its create revision.
type Contender = (ClaimNo, Revision);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Mail {
    to: Contender,
    revision: Revision,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The client's session is over for it; the lease may live on.
    over: bool,
    lease_gone: bool,
    /// The epoch as far as it is known.
    epoch: Revision,
    spare_keys: Few<ClaimNo, 2>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Enqueueing,
    Waiting,
    Held,
    /// The hold ends: `leave`.
    Leaving,
    /// What is there under the key is not the hold's: `finish`.
    Finishing,
    Withdrawing,
    Ended,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    key: Option<ClaimNo>,
    own: Revision,
    unanswered: u8,
    in_doubt: bool,
    given_up: bool,
    /// An operator deleted its key when that was the first one.
    robbed: bool,
    /// Created and own revision of a mail that came before `own` was known.
    early_mail: (Revision, Revision),
    granted: Revision,
    alone: bool,
    call: Call,
    /// The token of the grant that its caller got; kept after the end as long as a claim lives that began before it.
    token: Revision,
    /// The highest token that was answered when the claim began.
    floor: Revision,
    /// Only where a step is taken out that needs it; `told` when news of its end have come.
    predecessor: Option<Contender>,
    told: bool,
}

/// The request of a claim that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Call {
    #[default]
    Idle,
    Sent(Request),
    Answered(Answer),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: ClaimNo,
    key: ClaimNo,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Enqueue { epoch: Revision },
    LeaveEmpty { own: Revision, fence: bool },
    HandOver { own: Revision, to: Contender, fence: bool },
    Withdraw { fence: bool },
}

impl Default for What {
    fn default() -> Self {
        Self::Withdraw { fence: false }
    }
}

/// The answer to an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Answer {
    revision: Revision,
    /// 0 when the key is not there.
    own: Revision,
    contenders: u8,
    next: Option<Contender>,
    epoch: Revision,
}

/// How a request ended that was to take a key away.
enum Left {
    Done,
    Gone,
    Still(Revision),
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A caller asks for the lock.
    Start(ClaimNo),
    /// The claim sends the next request that its phase asks for.
    Send(ClaimNo),
    /// As `Send`, with a stale answer to the read for the successor before it.
    SendAfterStaleRead(ClaimNo),
    /// The enqueue is sent, and executed at a later time or never; its sender gives up waiting for the reply.
    SendLate(ClaimNo),
    /// The server executes the request that ends the claim, and answers.
    Execute(ClaimNo),
    /// The reply arrives.
    Receive(ClaimNo),
    /// The reply is lost; so may the request be, or it is late.
    LoseReply(ClaimNo),
    /// The server executes a request for whose reply nobody waits.
    ExecuteLate(usize),
    /// The caller leaves.
    GiveUp(ClaimNo),
    /// A mail arrives, or is lost.
    Deliver(usize),
    /// A mail is lost.
    LoseMail(usize),
    /// The re-check.
    Look(ClaimNo),
    /// The watch tells the end of the predecessor.
    Told(ClaimNo),
    /// It does not.
    LoseEvent(ClaimNo),
    /// The guard is dropped.
    Release(ClaimNo),
    /// The beat misses the key of a hold.
    Miss(ClaimNo),
    /// The deadline passes without an acknowledged beat.
    Lapse(usize),
    /// The server ends the lease.
    Expire(usize),
    /// An operator deletes a key.
    Delete(ClaimNo),
}

impl Etcd {
    fn has(&self, step: Step) -> bool {
        self.without != Some(step)
    }

    fn waits(&self, claim: ClaimNo) -> bool {
        !(self.tries && claim.index() == self.claims - 1)
    }

    fn notes_predecessors(&self) -> bool {
        !self.has(Step::Recheck) || !self.has(Step::LookBeforeGrant)
    }
}

impl Protocol for Etcd {
    type Step = Step;
    const NAME: &'static str = "etcd queue";

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, tries, faults| Self { without: None, claims, tries, faults };
        let none = Faults::default();
        vec![
            ("2 x 2, nothing lost", scene(4, false, none)),
            ("2 x 2, a try, cancel", scene(4, true, Faults { cancels: 1, ..none })),
            ("2 x 2, lease ends", scene(4, false, Faults { lapses: 1, ..none })),
            ("2 + 1, two lost", scene(3, false, Faults { lost: 2, ..none })),
            ("2 + 1, lost, cancel", scene(3, false, Faults { lost: 1, cancels: 1, ..none })),
            ("2 + 1, lost, operator", scene(3, false, Faults { lost: 1, deletes: 1, ..none })),
            ("2 + 1, lost, lease ends", scene(3, true, Faults { lost: 1, lapses: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::default();
        let lost_and_cancelled = Faults { lost: 2, cancels: 1, ..none };
        let cancelled = Faults { cancels: 1, ..none };
        let removal = |step, breaks, claims, tries, faults| Removal {
            step,
            model: Self { without: Some(step), claims, tries, faults },
            breaks,
        };
        vec![
            removal(Step::EpochFence, NO_ORPHAN, 3, false, lost_and_cancelled),
            removal(Step::FenceWhenGone, NO_ORPHAN, 3, false, Faults { lost: 1, deletes: 1, ..none }),
            removal(Step::KeyPerClaim, ONE_HOLDER, 3, false, none),
            removal(Step::DoubtfulKeyRetired, NO_FOREIGN_DELETE, 3, false, lost_and_cancelled),
            removal(Step::MailNamesIncarnation, ONE_HOLDER, 4, false, cancelled),
            removal(Step::LookBeforeGrant, ONE_HOLDER, 3, false, cancelled),
            removal(Step::LookFindsOwnKey, ONE_HOLDER, 3, false, Faults { deletes: 1, ..none }),
            removal(Step::Recheck, NO_LOST_WAKEUP, 3, false, Faults { lost: 1, ..none }),
            removal(Step::TryFindsQueueEmpty, ONE_HOLDER, 3, true, none),
            removal(Step::DeadlineBeforeExpiry, ONE_HOLDER, 3, false, Faults { lapses: 1, ..none }),
        ]
    }
}

impl Model for Etcd {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = || Client { epoch: 1, ..Client::default() };
        vec![State {
            revision: 1,
            created_last: 0,
            epoch_last: [1; CLIENTS],
            keys: [None; CLAIMS],
            epochs: [1; CLIENTS],
            mails: Default::default(),
            clients: [client(), client()],
            claims: Default::default(),
            strays: Few::default(),
            faults: self.faults,
            token_last: 0,
            grants: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in ClaimNo::all() {
            state.actions_of(self, claim, actions);
            if state.faults.deletes > 0 && state.keys[claim.index()].is_some() {
                actions.push(Action::Delete(claim));
            }
        }
        actions.extend((0..state.strays.len()).map(Action::ExecuteLate));
        for client in 0..CLIENTS {
            let Client { over, lease_gone, .. } = state.clients[client];
            if !state.mails[client].is_empty() && !over {
                actions.push(Action::Deliver(client));
                if state.faults.lost > 0 {
                    actions.push(Action::LoseMail(client));
                }
            }
            if state.faults.lapses > 0 && !over {
                actions.push(Action::Lapse(client));
            }
            let may_expire = over || (!self.has(Step::DeadlineBeforeExpiry) && state.faults.lapses > 0);
            if may_expire && !lease_gone {
                actions.push(Action::Expire(client));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(claim) => state.start(self, claim),
            Action::Send(claim) => state.send(self, claim, false),
            Action::SendAfterStaleRead(claim) => state.send(self, claim, true),
            Action::SendLate(claim) => state.send_late(claim),
            Action::Execute(claim) => state.end(self, claim),
            Action::Receive(claim) => state.receive(self, claim),
            Action::LoseReply(claim) => state.lose_reply(claim),
            Action::ExecuteLate(nth) => {
                let request = state.strays.remove(nth);
                state.execute(self, request);
            }
            Action::GiveUp(claim) => state.give_up(claim),
            Action::Deliver(client) => state.deliver(self, client),
            Action::LoseMail(client) => state.lose_mail(client),
            Action::Look(claim) => state.look(self, claim),
            Action::Told(claim) if self.has(Step::LookBeforeGrant) => state.claims[claim.index()].told = true,
            Action::Told(claim) => state.grant(claim, state.revision, false),
            Action::LoseEvent(claim) => state.claims[claim.index()].predecessor = None,
            Action::Release(claim) | Action::Miss(claim) => {
                state.claims[claim.index()].phase = Phase::Leaving
            }
            Action::Lapse(client) => state.lapse(client),
            Action::Expire(client) => state.expire(client),
            Action::Delete(key) => state.delete(key),
        }
        state.forget_old_tokens();
        let highest = rank::compress(&mut state);
        state.created_last = highest[CREATED];
        state.epoch_last = [highest[EPOCH], highest[EPOCH + 1]];
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| state.holders().count() <= 1),
            Property::always(TOKENS_RISE, |_, state: &State| state.broken != Some(TOKENS_RISE)),
            Property::always(IN_ORDER, |_, state: &State| !state.has_overtaken()),
            Property::always(NO_FOREIGN_DELETE, |_, state: &State| state.broken != Some(NO_FOREIGN_DELETE)),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            Property::always(NO_LOST_WAKEUP, |model, state: &State| {
                !state.is_at_rest() || !state.is_stuck(model)
            }),
            Property::sometimes("all claims are granted", |model, state: &State| {
                usize::from(state.grants) == model.claims
            }),
        ]
    }
}

/// What a claim does next.
impl State {
    fn actions_of(&self, model: &Etcd, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        if self.clients[number.client()].over {
            return;
        }
        match claim.call {
            Call::Idle => {}
            Call::Sent(_) => actions.push(Action::Execute(number)),
            Call::Answered(_) => actions.push(Action::Receive(number)),
        }
        if claim.call != Call::Idle && self.faults.lost > 0 {
            actions.push(Action::LoseReply(number));
        }
        let idle = claim.call == Call::Idle;
        let before = (number.index() + CLAIMS - 1) % CLAIMS;
        match claim.phase {
            Phase::New if number.index() >= model.claims => {}
            Phase::New if number.is_first() || self.claims[before].phase != Phase::New => {
                actions.push(Action::Start(number));
            }
            Phase::New | Phase::Ended => {}
            Phase::Enqueueing | Phase::Finishing | Phase::Withdrawing | Phase::Leaving if idle => {
                actions.push(Action::Send(number));
                if claim.phase == Phase::Enqueueing && !claim.given_up && self.faults.lost > 0 {
                    actions.push(Action::SendLate(number));
                }
                if claim.phase == Phase::Leaving && !claim.alone && self.successor(claim.own).is_some() {
                    actions.push(Action::SendAfterStaleRead(number));
                }
            }
            Phase::Waiting => self.actions_of_waiter(model, number, actions),
            Phase::Held => {
                actions.push(Action::Release(number));
                if !self.is_there(claim) {
                    actions.push(Action::Miss(number));
                }
            }
            _ => {}
        }
        let acquiring = matches!(claim.phase, Phase::Enqueueing | Phase::Waiting);
        if acquiring && !claim.given_up && self.faults.cancels > 0 {
            actions.push(Action::GiveUp(number));
        }
    }

    fn actions_of_waiter(&self, model: &Etcd, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        if model.has(Step::Recheck) || claim.told {
            actions.push(Action::Look(number));
        }
        if claim.predecessor.is_some_and(|contender| !self.is_contender(contender)) && !claim.told {
            actions.extend([Action::Told(number), Action::LoseEvent(number)]);
        }
    }

    fn start(&mut self, model: &Etcd, number: ClaimNo) {
        let spare = self.clients[number.client()].spare_keys.pop();
        let shared = ClaimNo(number.0 / 2 * 2);
        let key = if model.has(Step::KeyPerClaim) { spare.unwrap_or(number) } else { shared };
        let floor = self.token_last;
        let claim = &mut self.claims[number.index()];
        *claim = Claim { phase: Phase::Enqueueing, key: Some(key), floor, ..Claim::default() };
    }

    fn send(&mut self, model: &Etcd, number: ClaimNo, stale: bool) {
        let epoch = self.clients[number.client()].epoch;
        let claim = &mut self.claims[number.index()];
        let needs_fence = claim.unanswered > 0;
        let fence = needs_fence && model.has(Step::EpochFence);
        let what = match claim.phase {
            Phase::Enqueueing if claim.given_up => {
                claim.phase = Phase::Withdrawing;
                claim.given_up = false;
                return;
            }
            Phase::Enqueueing => {
                claim.unanswered += 1;
                let key = claim.key.unwrap_or(number);
                let answer = self.enqueue(model, number, key, epoch);
                self.claims[number.index()].call = Call::Answered(answer);
                return;
            }
            Phase::Withdrawing if claim.granted > 0 => {
                claim.phase = Phase::Leaving;
                return;
            }
            Phase::Withdrawing if claim.own == 0 && !needs_fence => return self.forget(model, number),
            Phase::Leaving => {
                let own = claim.own;
                let alone = std::mem::take(&mut claim.alone);
                match self.successor(own).filter(|_| !alone && !stale) {
                    Some(to) => What::HandOver { own, to, fence },
                    None => What::LeaveEmpty { own, fence },
                }
            }
            _ => What::Withdraw { fence },
        };
        let claim = &mut self.claims[number.index()];
        let request = claim.key.map(|key| Request { claim: number, key, what });
        claim.call = request.map_or(Call::Idle, Call::Sent);
    }

    fn send_late(&mut self, number: ClaimNo) {
        let epoch = self.clients[number.client()].epoch;
        let claim = &mut self.claims[number.index()];
        claim.unanswered += 1;
        claim.in_doubt = true;
        self.faults.lost -= 1;
        if let Some(key) = claim.key {
            self.leave_stray(Request { claim: number, key, what: What::Enqueue { epoch } });
        }
    }

    /// The answer to an enqueue.
    fn receive(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &mut self.claims[number.index()];
        if let Call::Answered(answer) = std::mem::take(&mut claim.call) {
            claim.unanswered -= 1;
            let known = &mut self.clients[number.client()].epoch;
            *known = (*known).max(answer.epoch);
            self.standing(model, number, answer);
        }
    }

    /// The end of a claim is executed and answered.
    fn end(&mut self, model: &Etcd, number: ClaimNo) {
        let Call::Sent(request) = std::mem::take(&mut self.claims[number.index()].call) else { return };
        let (left, fence) = (self.execute(model, request), request.what.fences());
        let claim = &mut self.claims[number.index()];
        match left {
            Left::Done => {
                if fence {
                    self.clients[number.client()].epoch = self.epochs[number.client()];
                }
                self.forget(model, number);
            }
            Left::Gone if fence && model.has(Step::FenceWhenGone) => claim.phase = Phase::Finishing,
            Left::Gone => self.forget(model, number),
            Left::Still(created) if created == claim.own => {}
            Left::Still(_) => claim.phase = Phase::Finishing,
        }
    }

    /// What the answer to an enqueue means.
    fn standing(
        &mut self,
        model: &Etcd,
        number: ClaimNo,
        Answer { revision, own, contenders, next, .. }: Answer,
    ) {
        let claim = &mut self.claims[number.index()];
        if own == 0 {
            if !model.waits(number) && contenders > 0 {
                claim.phase = Phase::Withdrawing;
            }
            return;
        }
        claim.own = own;
        let (created, mailed) = std::mem::take(&mut claim.early_mail);
        let counts = created == own || !model.has(Step::MailNamesIncarnation);
        if mailed > 0 && counts {
            claim.granted = mailed;
        }
        let alone = contenders == 1;
        if alone || !model.waits(number) {
            return self.grant(number, revision, alone);
        }
        claim.phase = Phase::Waiting;
        claim.predecessor = next.filter(|_| model.notes_predecessors());
        if claim.granted > 0 {
            self.grant(number, revision, false);
        } else if next.is_none() {
            self.look(model, number);
        }
    }

    /// The reply of the claim's request does not come.
    fn lose_reply(&mut self, number: ClaimNo) {
        self.faults.lost -= 1;
        let claim = &mut self.claims[number.index()];
        claim.in_doubt = true;
        if claim.phase == Phase::Finishing {
            claim.phase = Phase::Leaving;
        }
        if let Call::Sent(request) = std::mem::take(&mut claim.call) {
            self.leave_stray(request);
        }
    }

    fn leave_stray(&mut self, request: Request) {
        self.strays.push(request);
        self.strays.sort_unstable();
    }

    fn give_up(&mut self, number: ClaimNo) {
        self.faults.cancels -= 1;
        let claim = &mut self.claims[number.index()];
        match claim.phase {
            Phase::Waiting => claim.phase = Phase::Withdrawing,
            _ => claim.given_up = true,
        }
    }

    /// `acquire` answers a grant; the first proof fixes its token.
    fn grant(&mut self, number: ClaimNo, revision: Revision, alone: bool) {
        let claim = &mut self.claims[number.index()];
        if claim.granted == 0 {
            (claim.granted, claim.alone) = (revision, alone);
        }
        let (token, floor) = (claim.granted, std::mem::take(&mut claim.floor));
        claim.phase = Phase::Held;
        claim.given_up = false;
        claim.predecessor = None;
        if token <= floor || self.claims.iter().any(|other| other.token == token) {
            self.broken = Some(TOKENS_RISE);
        }
        self.claims[number.index()].token = token;
        self.token_last = self.token_last.max(token);
        self.grants += 1;
    }

    /// The claim has ended; a later one may have its key.
    fn forget(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &mut self.claims[number.index()];
        let ended = Claim { phase: Phase::Ended, token: claim.token, ..Claim::default() };
        let claim = std::mem::replace(claim, ended);
        let reusable = !claim.in_doubt || !model.has(Step::DoubtfulKeyRetired);
        if let Some(key) = claim.key.filter(|_| reusable && model.has(Step::KeyPerClaim)) {
            self.clients[number.client()].spare_keys.push(key);
        }
    }

    /// Tokens of ended claims that every later grant is compared with by its floor.
    fn forget_old_tokens(&mut self) {
        let lives = |claim: &&Claim| !matches!(claim.phase, Phase::New | Phase::Ended | Phase::Held);
        let floor = self.claims.iter().filter(lives).map(|claim| claim.floor).min().unwrap_or(Revision::MAX);
        for claim in
            self.claims.iter_mut().filter(|claim| claim.phase == Phase::Ended && claim.token <= floor)
        {
            claim.token = 0;
        }
    }

    fn lose_mail(&mut self, client: usize) {
        self.faults.lost -= 1;
        self.mails[client].remove(0);
    }

    fn deliver(&mut self, model: &Etcd, client: usize) {
        let Mail { to: (key, created), revision } = self.mails[client].remove(0);
        let live = |claim: &ClaimNo| self.claims[claim.index()].key == Some(key);
        let Some(number) = ClaimNo::all().find(live) else { return };
        let claim = &mut self.claims[number.index()];
        if claim.own == 0 {
            claim.early_mail = claim.early_mail.max((created, revision));
        } else if claim.granted == 0 && (claim.own == created || !model.has(Step::MailNamesIncarnation)) {
            claim.granted = revision;
            if claim.phase == Phase::Waiting {
                self.grant(number, revision, false);
            }
        }
    }

    /// Reads, at one revision, whether the own key is there and who is next in front of it.
    fn look(&mut self, model: &Etcd, number: ClaimNo) {
        let claim = &self.claims[number.index()];
        let there = self.is_there(claim) || !model.has(Step::LookFindsOwnKey);
        let predecessor =
            self.contenders().filter(|(_, created)| *created < claim.own).max_by_key(|(_, at)| *at);
        if !there {
            self.claims[number.index()].phase = Phase::Withdrawing;
        } else if predecessor.is_none() {
            self.grant(number, self.revision, false);
        } else {
            let claim = &mut self.claims[number.index()];
            claim.told = false;
            claim.predecessor = predecessor.filter(|_| model.notes_predecessors());
        }
    }

    fn lapse(&mut self, client: usize) {
        self.faults.lapses -= 1;
        self.clients[client].over = true;
        self.clients[client].spare_keys.clear();
        self.mails[client].clear();
        for claim in ClaimNo::all().filter(|claim| claim.client() == client) {
            let token = self.claims[claim.index()].token;
            let ended = Claim { phase: Phase::Ended, token, ..Claim::default() };
            if let Call::Sent(request) = std::mem::replace(&mut self.claims[claim.index()], ended).call {
                self.leave_stray(request);
            }
        }
    }
}

/// The server.
impl State {
    fn execute(&mut self, model: &Etcd, Request { claim, key, what }: Request) -> Left {
        let created = self.keys[key.index()].map_or(0, |key| key.created);
        let still = if created == 0 { Left::Gone } else { Left::Still(created) };
        match what {
            What::Enqueue { epoch } => {
                self.enqueue(model, claim, key, epoch);
                return still;
            }
            What::LeaveEmpty { own, .. } if created != own || self.contenders().count() > 1 => return still,
            What::HandOver { own, to, .. } if created != own || !self.is_contender(to) => return still,
            _ => {}
        }
        if self.keys[key.index()].is_some_and(|key| key.by != claim) {
            self.broken = Some(NO_FOREIGN_DELETE);
        }
        self.keys[key.index()] = None;
        self.revision += 1;
        let client = &self.clients[claim.client()];
        if what.fences() && !client.lease_gone {
            self.epoch_last[claim.client()] += 1;
            self.epochs[claim.client()] = self.epoch_last[claim.client()];
        }
        if let What::HandOver { to, .. } = what
            && !self.clients[to.0.client()].over
        {
            self.mails[to.0.client()].push(Mail { to, revision: self.revision });
        }
        Left::Done
    }

    fn enqueue(&mut self, model: &Etcd, claim: ClaimNo, key: ClaimNo, epoch: Revision) -> Answer {
        let client = claim.client();
        let fits =
            model.waits(claim) || self.contenders().count() == 0 || !model.has(Step::TryFindsQueueEmpty);
        if self.keys[key.index()].is_none()
            && self.epochs[client] == epoch
            && fits
            && !self.clients[client].lease_gone
        {
            self.revision += 1;
            self.created_last += 1;
            self.keys[key.index()] = Some(Key { created: self.created_last, by: claim });
        }
        let own = self.keys[key.index()].map_or(0, |key| key.created);
        let mut newest: Vec<Contender> = self.contenders().collect();
        newest.sort_unstable_by_key(|(_, created)| std::cmp::Reverse(*created));
        let next = newest.get(1).copied().filter(|_| newest[0].1 == own);
        let contenders = newest.len() as u8;
        Answer { revision: self.revision, own, contenders, next, epoch: self.epochs[client] }
    }

    fn expire(&mut self, client: usize) {
        if !self.clients[client].over {
            self.faults.lapses -= 1;
        }
        self.clients[client].lease_gone = true;
        self.revision += 1;
        self.epochs[client] = 0;
        for key in ClaimNo::all().filter(|key| key.client() == client) {
            self.keys[key.index()] = None;
        }
    }

    /// An operator deletes a key; when it was the first one, exclusion is gone until its client has heard of it.
    fn delete(&mut self, key: ClaimNo) {
        self.faults.deletes -= 1;
        self.revision += 1;
        let Some(deleted) = self.keys[key.index()].take() else { return };
        let first = self.contenders().all(|(_, created)| created > deleted.created);
        if first {
            self.claims[deleted.by.index()].robbed = true;
        }
    }

    fn contenders(&self) -> impl Iterator<Item = Contender> + '_ {
        ClaimNo::all().filter_map(|key| self.keys[key.index()].map(|there| (key, there.created)))
    }

    fn is_contender(&self, (key, created): Contender) -> bool {
        self.keys[key.index()].is_some_and(|there| there.created == created)
    }

    fn successor(&self, own: Revision) -> Option<Contender> {
        self.contenders().filter(|(_, created)| *created > own).min_by_key(|(_, created)| *created)
    }
}

/// What the properties ask.
impl State {
    fn is_there(&self, claim: &Claim) -> bool {
        claim.key.is_some_and(|key| self.is_contender((key, claim.own)))
    }

    /// Who believes to hold the lock, but for those whom an operator has robbed of it: they hear of it by a beat.
    fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held && !claim.robbed)
    }

    fn has_overtaken(&self) -> bool {
        let waiters =
            || self.claims.iter().filter(|claim| claim.phase == Phase::Waiting && self.is_there(claim));
        self.holders().any(|holder| waiters().any(|waiter| waiter.own < holder.own))
    }

    fn is_at_rest(&self) -> bool {
        let rests = |claim: &Claim| {
            claim.call == Call::Idle
                && matches!(claim.phase, Phase::New | Phase::Waiting | Phase::Held | Phase::Ended)
        };
        self.strays.is_empty()
            && self.mails.iter().all(|mails| mails.is_empty())
            && self.claims.iter().all(rests)
    }

    fn has_orphan(&self) -> bool {
        self.keys.iter().flatten().any(|key| {
            !self.clients[key.by.client()].over && self.claims[key.by.index()].phase == Phase::Ended
        })
    }

    /// Whether somebody waits, nobody holds the lock or will end, and no waiter has a reason to look.
    fn is_stuck(&self, model: &Etcd) -> bool {
        let mut waiters =
            ClaimNo::all().filter(|claim| self.claims[claim.index()].phase == Phase::Waiting).peekable();
        let over = self.clients.iter().any(|client| client.over && !client.lease_gone);
        let held = self.claims.iter().any(|claim| claim.phase == Phase::Held);
        let mut ends = |number: ClaimNo| {
            let claim = &self.claims[number.index()];
            let first = self.contenders().all(|(_, created)| created >= claim.own);
            let mut actions = Vec::new();
            self.actions_of_waiter(model, number, &mut actions);
            !actions.is_empty() && (first || !self.is_there(claim))
        };
        waiters.peek().is_some() && !held && !over && !waiters.any(&mut ends)
    }
}

impl What {
    fn fences(&self) -> bool {
        match *self {
            Self::Enqueue { .. } => false,
            Self::LeaveEmpty { fence, .. } | Self::HandOver { fence, .. } | Self::Withdraw { fence } => fence,
        }
    }
}

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut dyn FnMut(Domain, &mut Rank)) {
        visit(TOKEN, &mut self.revision);
        visit(TOKEN, &mut self.token_last);
        self.keys.iter_mut().flatten().for_each(|key| visit(CREATED, &mut key.created));
        for client in 0..CLIENTS {
            visit(EPOCH + client, &mut self.epochs[client]);
            visit(EPOCH + client, &mut self.clients[client].epoch);
        }
        for mail in self.mails.iter_mut().flat_map(|mails| mails.iter_mut()) {
            visit(CREATED, &mut mail.to.1);
            visit(TOKEN, &mut mail.revision);
        }
        self.strays.iter_mut().for_each(|request| request.each_rank(visit));
        for (number, claim) in ClaimNo::all().zip(&mut self.claims) {
            for created in [&mut claim.own, &mut claim.early_mail.0] {
                visit(CREATED, created);
            }
            for token in [&mut claim.early_mail.1, &mut claim.granted, &mut claim.token, &mut claim.floor] {
                visit(TOKEN, token);
            }
            claim.predecessor.iter_mut().for_each(|contender| visit(CREATED, &mut contender.1));
            match &mut claim.call {
                Call::Idle => {}
                Call::Sent(request) => request.each_rank(visit),
                Call::Answered(answer) => {
                    visit(TOKEN, &mut answer.revision);
                    visit(CREATED, &mut answer.own);
                    visit(EPOCH + number.client(), &mut answer.epoch);
                    answer.next.iter_mut().for_each(|contender| visit(CREATED, &mut contender.1));
                }
            }
        }
    }
}

impl Ranked for Request {
    fn each_rank(&mut self, visit: &mut dyn FnMut(Domain, &mut Rank)) {
        match &mut self.what {
            What::Enqueue { epoch } => visit(EPOCH + self.claim.client(), epoch),
            What::LeaveEmpty { own, .. } => visit(CREATED, own),
            What::HandOver { own, to, .. } => {
                visit(CREATED, own);
                visit(CREATED, &mut to.1);
            }
            What::Withdraw { .. } => {}
        }
    }
}
