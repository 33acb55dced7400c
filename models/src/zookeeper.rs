//! The ZooKeeper queue: `lockkit-zk/src/{acquire, release, sequence, beat}.rs`.
//!
//! Two clients with two claims each on one lock. Writes and checks go through the leader and are answered in the same
//! step, or their answer is lost. Lists and watches are served by the client's own server, which has any earlier state of
//! the leader that is not older than what the client has been answered.
//!
//! * The numbers of the nodes count modulo 8 and wrap after the first one. (With fewer of them four contenders would be
//!   more than half of a round apart, which 2^32 numbers never are.)
//! * The server ends a session at any time after the client's own deadline. The client then goes on with a new session;
//!   a claim whose create was not answered is taken along (harder than in the code, where the keeper makes a new claim
//!   for the new session).
//! * An operator deletes any node at any time. When it was the first one, its claim is excused from exclusion until its
//!   client has heard of it.
//!
//! * The code also asks the leader before a grant when its last proof of life is old. That is left out: it only makes some
//!   grants later.
//!
//! Left out: other programs' contenders, directories that vanish, the form with a single node.

use stateright::{Model, Property};

use crate::{
    explore::{Protocol, Removal},
    few::Few,
    rank::{self, Domain, Rank, Ranked},
};

/// A transaction of the store, of which the create's is the token.
type Zxid = Rank;
/// Claims 0 and 1 are of one client, 2 and 3 of the other.
type ClaimNo = u8;

const ZXID: Domain = 0;
const CLIENTS: usize = 2;
const CLAIMS: usize = 4;
/// Numbers of nodes: they wrap after this many.
const NUMBERS: u8 = 8;
const FIRST_NUMBER: u8 = 7;

const ONE_HOLDER: &str = "one holder at a time";
const TOKENS_RISE: &str = "tokens are unique and rise";
const IN_ORDER: &str = "first come, first served";
const NO_ORPHAN: &str = "no orphan at rest";
const NO_LOST_WAKEUP: &str = "no lost wake-up at rest";

/// The safety steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A node is looked up behind a request that went through the leader.
    LookUpBehindLeader,
    /// A node that is found is the claim's only if it belongs to this session.
    OwnerIsThisSession,
    /// A claim that is given up waits until it knows whether its create was done.
    CancelAwaitsCreate,
    /// A list without the own node grants nothing.
    ListShowsOwnNode,
    /// After a wait the list is read again: the end of the predecessor is no turn.
    ListAfterPredecessor,
    /// A waiter reads the list now and then although nothing has told it to.
    Recheck,
    /// Numbers are compared as they wrap.
    OrderWraps,
    /// The token is the create's transaction, not the number.
    TokenIsZxid,
    /// A deletion is repeated until it is answered.
    DeleteRepeats,
    /// A client stops to believe in its holds before the server ends its session.
    DeadlineBeforeExpiry,
}

/// How often things may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    lost: u8,
    cancels: u8,
    deletes: u8,
    lapses: u8,
}

/// The model.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    without: Option<Step>,
    claims: u8,
    faults: Faults,
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The directory as the leader has it.
    nodes: Nodes,
    next_number: u8,
    zxid: Zxid,
    clients: [Client; CLIENTS],
    claims: [Claim; CLAIMS],
    token_last: Rank,
    grants: u8,
    faults: Faults,
    broken: Option<&'static str>,
}

type Nodes = Few<Node, 5>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    claim: ClaimNo,
    number: u8,
    czxid: Zxid,
    session: Session,
}

/// A client's first session, or its second one.
type Session = (u8, bool);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The directory as its server has it.
    view: Nodes,
    second_session: bool,
    first_expired: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    own: Option<Node>,
    given_up: bool,
    /// An operator deleted its node when that was the first one.
    robbed: bool,
    /// The number of the node that is watched.
    predecessor: Option<u8>,
    token: Rank,
    floor: Rank,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Creating,
    LookingUp,
    Listing,
    Waiting,
    Held,
    /// Released or withdrawn.
    Deleting,
    Ended,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A caller asks for the lock.
    Start(ClaimNo),
    /// The create is done and answered.
    Create(ClaimNo),
    /// It is not answered; done or not.
    LoseCreate(ClaimNo, bool),
    /// The claim's node is looked for.
    LookUp(ClaimNo),
    /// The list is read.
    List(ClaimNo),
    /// The watch tells that the predecessor is gone.
    Told(ClaimNo),
    /// It does not.
    LoseEvent(ClaimNo),
    /// The own node is deleted.
    Delete(ClaimNo),
    /// The answer is lost; done or not.
    LoseDelete(ClaimNo, bool),
    /// The caller leaves.
    GiveUp(ClaimNo),
    /// The guard is dropped.
    Release(ClaimNo),
    /// The beat misses the node of a hold.
    Miss(ClaimNo),
    /// The client's server hears what the leader has done.
    CatchUp(usize),
    /// The deadline passes; the client goes on in a new session.
    Lapse(usize),
    /// The server ends the first session.
    Expire(usize),
    /// An operator deletes a node.
    Break(usize),
}

impl ZooKeeper {
    fn has(&self, step: Step) -> bool {
        self.without != Some(step)
    }

    /// Whether one number comes before another.
    fn is_before(&self, one: u8, other: u8) -> bool {
        match self.has(Step::OrderWraps) {
            true => one != other && (other + NUMBERS - one) % NUMBERS < NUMBERS / 2,
            false => one < other,
        }
    }
}

impl Protocol for ZooKeeper {
    type Step = Step;
    const NAME: &'static str = "zookeeper queue";

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, faults| Self { without: None, claims, faults };
        let none = Faults::default();
        vec![
            ("2 x 2, cancel", scene(4, Faults { cancels: 1, ..none })),
            ("2 x 2, lost", scene(4, Faults { lost: 1, ..none })),
            ("2 x 2, session ends", scene(4, Faults { lapses: 1, ..none })),
            ("2 + 1, two lost, cancel", scene(3, Faults { lost: 2, cancels: 1, ..none })),
            ("2 + 1, lost, session ends", scene(3, Faults { lost: 1, lapses: 1, ..none })),
            ("2 + 1, lost, operator", scene(3, Faults { lost: 1, deletes: 1, ..none })),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |faults| Self { without: None, claims: 4, faults };
        let none = Faults::default();
        vec![
            ("2 x 2, lost, cancel", scene(Faults { lost: 1, cancels: 1, ..none })),
            ("2 x 2, operator", scene(Faults { deletes: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::default();
        let lost = Faults { lost: 1, ..none };
        let deleted = Faults { deletes: 1, ..none };
        let cancelled = Faults { cancels: 1, ..none };
        let lapsed = Faults { lapses: 1, ..none };
        let removal = |step, breaks, faults| Removal {
            step,
            model: Self { without: Some(step), claims: 3, faults },
            breaks,
        };
        vec![
            removal(Step::LookUpBehindLeader, NO_ORPHAN, lost),
            removal(Step::OwnerIsThisSession, ONE_HOLDER, Faults { lost: 1, ..lapsed }),
            removal(Step::CancelAwaitsCreate, NO_ORPHAN, Faults { lost: 1, ..cancelled }),
            removal(Step::ListShowsOwnNode, ONE_HOLDER, deleted),
            removal(Step::ListAfterPredecessor, ONE_HOLDER, cancelled),
            removal(Step::Recheck, NO_LOST_WAKEUP, lost),
            removal(Step::OrderWraps, ONE_HOLDER, none),
            removal(Step::TokenIsZxid, TOKENS_RISE, none),
            removal(Step::DeleteRepeats, NO_ORPHAN, lost),
            removal(Step::DeadlineBeforeExpiry, ONE_HOLDER, lapsed),
        ]
    }
}

impl Model for ZooKeeper {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: Nodes::default(),
            next_number: FIRST_NUMBER,
            zxid: 1,
            clients: Default::default(),
            claims: Default::default(),
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
        for (number, client) in state.clients.iter().enumerate() {
            if client.view != state.nodes {
                actions.push(Action::CatchUp(number));
            }
            if state.faults.lapses > 0 && !client.second_session {
                actions.push(Action::Lapse(number));
            }
            let early = !self.has(Step::DeadlineBeforeExpiry) && state.faults.lapses > 0;
            if (client.second_session || early) && !client.first_expired {
                actions.push(Action::Expire(number));
            }
        }
        if state.faults.deletes > 0 {
            actions.extend((0..state.nodes.len()).map(Action::Break));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(claim) => {
                let floor = state.token_last;
                *state.claim(claim) = Claim { phase: Phase::Creating, floor, ..Claim::default() };
            }
            Action::Create(claim) => {
                let own = state.create(claim);
                state.created(claim, own);
            }
            Action::LoseCreate(claim, done) => {
                state.faults.lost -= 1;
                if done {
                    state.create(claim);
                }
                state.claim(claim).phase = Phase::LookingUp;
            }
            Action::LookUp(claim) => state.look_up(self, claim),
            Action::List(claim) => state.list(self, claim),
            Action::Told(claim) => state.told(self, claim),
            Action::LoseEvent(claim) => {
                state.faults.lost -= 1;
                state.claim(claim).predecessor = None;
            }
            Action::Delete(claim) => {
                state.delete(claim);
                state.heard_of_leader(claim);
                state.forget(claim);
            }
            Action::LoseDelete(claim, done) => {
                state.faults.lost -= 1;
                if done {
                    state.delete(claim);
                }
                if !self.has(Step::DeleteRepeats) {
                    state.forget(claim);
                }
            }
            Action::GiveUp(claim) => state.give_up(self, claim),
            Action::Release(claim) | Action::Miss(claim) => state.claim(claim).phase = Phase::Deleting,
            Action::CatchUp(client) => state.clients[client].view = state.nodes,
            Action::Lapse(client) => state.lapse(client),
            Action::Expire(client) => state.expire(client),
            Action::Break(nth) => {
                state.faults.deletes -= 1;
                state.remove(nth);
                if nth == 0
                    && let Some(claim) = last.nodes.first().map(|node| node.claim)
                {
                    state.claim(claim).robbed = true;
                }
            }
        }
        state.forget_old_tokens();
        rank::compress(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| state.holders().count() <= 1),
            Property::always(TOKENS_RISE, |_, state: &State| state.broken != Some(TOKENS_RISE)),
            Property::always(IN_ORDER, |_, state: &State| !state.has_overtaken()),
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
    fn actions_of(&self, model: &ZooKeeper, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[usize::from(number)];
        let before_is_new =
            !number.is_multiple_of(2) && self.claims[usize::from(number) - 1].phase == Phase::New;
        let may_lose = self.faults.lost > 0;
        match claim.phase {
            Phase::New if !before_is_new => actions.push(Action::Start(number)),
            Phase::New | Phase::Ended => {}
            Phase::Creating => {
                actions.push(Action::Create(number));
                if may_lose {
                    actions.extend([Action::LoseCreate(number, true), Action::LoseCreate(number, false)]);
                }
            }
            Phase::LookingUp => actions.push(Action::LookUp(number)),
            Phase::Listing => actions.push(Action::List(number)),
            Phase::Waiting => self.actions_of_waiter(model, number, actions),
            Phase::Held => {
                actions.push(Action::Release(number));
                if !self.is_there(number) {
                    actions.push(Action::Miss(number));
                }
            }
            Phase::Deleting => {
                actions.push(Action::Delete(number));
                if may_lose {
                    actions.extend([Action::LoseDelete(number, true), Action::LoseDelete(number, false)]);
                }
            }
        }
        let gives_up =
            matches!(claim.phase, Phase::Creating | Phase::LookingUp | Phase::Listing | Phase::Waiting);
        if self.faults.cancels > 0 && gives_up && !claim.given_up {
            actions.push(Action::GiveUp(number));
        }
    }

    fn actions_of_waiter(&self, model: &ZooKeeper, number: ClaimNo, actions: &mut Vec<Action>) {
        if model.has(Step::Recheck) {
            actions.push(Action::List(number));
        }
        let view = &self.clients[usize::from(number / 2)].view;
        let gone = |before: u8| !view.iter().any(|node| node.number == before);
        if self.claims[usize::from(number)].predecessor.is_some_and(gone) {
            actions.push(Action::Told(number));
            if self.faults.lost > 0 && !model.has(Step::Recheck) {
                actions.push(Action::LoseEvent(number));
            }
        }
    }

    fn claim(&mut self, claim: ClaimNo) -> &mut Claim {
        &mut self.claims[usize::from(claim)]
    }

    fn session_of(&self, claim: ClaimNo) -> Session {
        (claim / 2, self.clients[usize::from(claim / 2)].second_session)
    }

    /// An answer of the leader: the client's server has no older state.
    fn heard_of_leader(&mut self, claim: ClaimNo) {
        self.clients[usize::from(claim / 2)].view = self.nodes;
    }

    fn created(&mut self, number: ClaimNo, own: Node) {
        self.heard_of_leader(number);
        let claim = self.claim(number);
        claim.own = Some(own);
        claim.phase = if claim.given_up { Phase::Deleting } else { Phase::Listing };
    }

    fn look_up(&mut self, model: &ZooKeeper, number: ClaimNo) {
        if model.has(Step::LookUpBehindLeader) {
            self.heard_of_leader(number);
        }
        let session = self.session_of(number);
        let view = self.clients[usize::from(number / 2)].view;
        let is_own = |node: &&Node| {
            node.claim == number && (node.session == session || !model.has(Step::OwnerIsThisSession))
        };
        let found = view.iter().find(is_own).copied();
        let claim = self.claim(number);
        claim.own = found;
        claim.phase = match (found, claim.given_up) {
            (Some(_), true) => Phase::Deleting,
            (Some(_), false) => Phase::Listing,
            (None, true) => return self.forget(number),
            (None, false) => Phase::Creating,
        };
    }

    fn list(&mut self, model: &ZooKeeper, number: ClaimNo) {
        let view = self.clients[usize::from(number / 2)].view;
        let Some(own) = self.claim(number).own else { return };
        if !view.contains(&own) && model.has(Step::ListShowsOwnNode) {
            self.claim(number).phase = Phase::Deleting;
            return;
        }
        let before = || view.iter().filter(|node| model.is_before(node.number, own.number));
        let nearest = before().find(|node| !before().any(|other| model.is_before(node.number, other.number)));
        match nearest.map(|node| node.number) {
            None => self.grant(model, number),
            predecessor => {
                let claim = self.claim(number);
                (claim.phase, claim.predecessor) = (Phase::Waiting, predecessor);
            }
        }
    }

    fn told(&mut self, model: &ZooKeeper, number: ClaimNo) {
        let claim = self.claim(number);
        claim.predecessor = None;
        match model.has(Step::ListAfterPredecessor) {
            true => claim.phase = Phase::Listing,
            false => self.grant(model, number),
        }
    }

    fn give_up(&mut self, model: &ZooKeeper, number: ClaimNo) {
        self.faults.cancels -= 1;
        let claim = self.claim(number);
        claim.given_up = true;
        match claim.phase {
            Phase::Creating => self.forget(number),
            Phase::LookingUp if model.has(Step::CancelAwaitsCreate) => {}
            Phase::LookingUp => self.forget(number),
            _ => claim.phase = Phase::Deleting,
        }
    }

    fn grant(&mut self, model: &ZooKeeper, number: ClaimNo) {
        let Some(own) = self.claim(number).own else { return };
        let token = if model.has(Step::TokenIsZxid) { own.czxid } else { own.number + 1 };
        let floor = std::mem::take(&mut self.claim(number).floor);
        if token <= floor || self.claims.iter().any(|other| other.token == token) {
            self.broken = Some(TOKENS_RISE);
        }
        let claim = self.claim(number);
        (claim.phase, claim.token, claim.predecessor) = (Phase::Held, token, None);
        self.token_last = self.token_last.max(token);
        self.grants += 1;
    }

    fn forget(&mut self, number: ClaimNo) {
        let claim = self.claim(number);
        *claim = Claim { phase: Phase::Ended, token: claim.token, ..Claim::default() };
    }

    fn forget_old_tokens(&mut self) {
        let acquires = |claim: &&Claim| !matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended);
        let floor = self.claims.iter().filter(acquires).map(|claim| claim.floor).min().unwrap_or(Rank::MAX);
        for claim in
            self.claims.iter_mut().filter(|claim| claim.phase == Phase::Ended && claim.token <= floor)
        {
            claim.token = 0;
        }
    }

    /// Holds and waiting claims end; one whose create was not answered is taken along.
    fn lapse(&mut self, client: usize) {
        self.faults.lapses -= 1;
        self.clients[client].second_session = true;
        for claim in 0..CLAIMS as ClaimNo {
            let phase = self.claim(claim).phase;
            let stays = matches!(phase, Phase::New | Phase::Creating | Phase::LookingUp);
            if usize::from(claim / 2) == client && !stays {
                self.forget(claim);
            }
        }
    }
}

/// The leader.
impl State {
    fn create(&mut self, claim: ClaimNo) -> Node {
        self.zxid += 1;
        let node =
            Node { claim, number: self.next_number, czxid: self.zxid, session: self.session_of(claim) };
        self.next_number = (self.next_number + 1) % NUMBERS;
        self.nodes.push(node);
        node
    }

    fn delete(&mut self, claim: ClaimNo) {
        let own = self.claim(claim).own;
        if let Some(nth) = self.nodes.iter().position(|node| Some(*node) == own) {
            self.remove(nth);
        }
    }

    fn remove(&mut self, nth: usize) {
        self.zxid += 1;
        self.nodes.remove(nth);
    }

    fn expire(&mut self, client: usize) {
        if !self.clients[client].second_session {
            self.faults.lapses -= 1;
        }
        self.clients[client].first_expired = true;
        self.zxid += 1;
        let session = (client as u8, false);
        while let Some(nth) = self.nodes.iter().position(|node| node.session == session) {
            self.nodes.remove(nth);
        }
    }
}

/// What the properties ask.
impl State {
    fn is_there(&self, claim: ClaimNo) -> bool {
        self.claims[usize::from(claim)].own.is_some_and(|own| self.nodes.contains(&own))
    }

    fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held && !claim.robbed)
    }

    fn has_overtaken(&self) -> bool {
        let place = |claim: &Claim| self.nodes.iter().position(|node| Some(*node) == claim.own);
        let waiters = || self.claims.iter().filter(|claim| claim.phase == Phase::Waiting).filter_map(place);
        self.holders().filter_map(place).any(|holder| waiters().any(|waiter| waiter < holder))
    }

    fn is_at_rest(&self) -> bool {
        let rests =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Waiting | Phase::Held | Phase::Ended);
        self.claims.iter().all(rests) && self.clients.iter().all(|client| client.view == self.nodes)
    }

    fn has_orphan(&self) -> bool {
        let is_owned = |node: &Node| {
            let claim = &self.claims[usize::from(node.claim)];
            claim.phase != Phase::Ended && claim.own == Some(*node)
        };
        let will_end =
            |node: &Node| !node.session.1 && self.clients[usize::from(node.session.0)].second_session;
        self.nodes.iter().any(|node| !is_owned(node) && !will_end(node))
    }

    /// Whether somebody waits for a lock that nobody holds or will lose, and no waiter has a reason to look.
    fn is_stuck(&self, model: &ZooKeeper) -> bool {
        let waits = |claim: &ClaimNo| self.claims[usize::from(*claim)].phase == Phase::Waiting;
        let looks = |claim: ClaimNo| {
            let mut actions = Vec::new();
            self.actions_of_waiter(model, claim, &mut actions);
            !actions.is_empty()
        };
        let held = self.claims.iter().any(|claim| claim.phase == Phase::Held);
        let ending = self.clients.iter().any(|client| client.second_session && !client.first_expired);
        let mut waiters = (0..CLAIMS as ClaimNo).filter(waits).peekable();
        waiters.peek().is_some() && !held && !ending && !waiters.any(looks)
    }
}

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut dyn FnMut(Domain, &mut Rank)) {
        visit(ZXID, &mut self.zxid);
        visit(ZXID, &mut self.token_last);
        let views = self.clients.iter_mut().map(|client| &mut client.view);
        for nodes in std::iter::once(&mut self.nodes).chain(views) {
            nodes.iter_mut().for_each(|node| visit(ZXID, &mut node.czxid));
        }
        for claim in &mut self.claims {
            claim.own.iter_mut().for_each(|own| visit(ZXID, &mut own.czxid));
            visit(ZXID, &mut claim.token);
            visit(ZXID, &mut claim.floor);
        }
    }
}
