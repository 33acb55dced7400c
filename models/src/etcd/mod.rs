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

mod claims;
mod server;

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
