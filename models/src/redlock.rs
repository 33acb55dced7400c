//! Redlock with fencing tokens: `lockkit-redis`, n independent masters.
//!
//! Two clients with two claims each, one after the other, on three nodes. A node's script is one step, its answer comes
//! with it; or the answer is lost and the script runs at once, or at any later time. Nodes are alike: states that differ
//! by their order are one state.
//!
//! * Clocks are arbitrary: a claim proposes what it likes as its time.
//! * A key of a claim that has ended goes at any time. A key of a living one may go early; exclusion is then not promised
//!   any more (tokens still are).
//! * A node may restart empty. It counts again after a ttl, in which every claim that relied on it has ended or has been
//!   renewed without it, and with the highest counter of the others.
//!
//! Left out: five nodes, the fresh round after a refused write-back (it is a new claim), pub/sub (a hint). That a
//! write-back also checks the counter is in the model, but no step that can be taken out: what it prevents is beyond this
//! scope.

use stateright::{Model, Property};

use crate::{
    explore::{Protocol, Removal},
    few::Few,
};

const NODES: usize = 3;
const MAJORITY: usize = 2;
const CLIENTS: usize = 2;
const CLAIMS: usize = 4;

const ONE_HOLDER: &str = "one holder at a time, while no key goes early";
const UNIQUE: &str = "tokens are unique";
const RISING: &str = "a token is above those of all grants before its claim began";
const NO_REVIVAL: &str = "a released key does not come back";

/// The safety steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Only a value that a majority answered alike is a token without a write-back.
    FastPathNeedsOneValue,
    /// A write-back counts only where the key is the claim's.
    WriteBackChecksOwner,
    /// Restore only where the counter is not above the token.
    RestoreChecksCounter,
    /// The release of a grant raises the counter above its token, whoever owns the key.
    ReleaseRaisesCounter,
    /// A node without its marker answers nothing that counts.
    MarkerIsTested,
    /// The marker comes back only after a ttl.
    MarkerWaits,
    /// And after the counter was raised to what a majority of the others has.
    MarkerRaisesCounter,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Redlock {
    without: Option<Step>,
    /// How many claims each client makes, and the times that they may propose.
    claims: [u8; CLIENTS],
    proposals: &'static [u8],
    faults: Faults,
}

/// How often things may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    /// Answers that are lost.
    lost: u8,
    /// Keys that go early.
    early: u8,
    /// Nodes that restart empty.
    restarts: u8,
}

/// A claim: its client and whether it is the first or the second one of it.
type ClaimNo = u8;

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    tokens: [u8; CLAIMS],
    faults: Faults,
    gone_early: bool,
    broken: Option<&'static str>,
}

/// A node, with what the clients have heard of it in their present phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    key: Option<ClaimNo>,
    counter: u8,
    unmarked: bool,
    /// Claims that may still rely on what the node had before its restart.
    waits_for: [bool; CLAIMS],
    /// Claims whose release ran here.
    released: [bool; CLAIMS],
    heard: [Heard; CLIENTS],
    late: Few<Request, 2>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Heard {
    #[default]
    Nothing,
    /// The key is the claim's, with this counter.
    Yes(u8),
    /// Busy, empty, refused, or lost.
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: ClaimNo,
    what: What,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Ask {
        proposal: u8,
    },
    WriteBack {
        token: u8,
    },
    Restore {
        token: u8,
    },
    /// With the token 0 the clean-up of a claim without a grant.
    #[default]
    CleanUp,
    Release {
        token: u8,
    },
}

impl Default for Request {
    fn default() -> Self {
        Self { claim: 0, what: What::CleanUp }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    begun: u8,
    phase: Phase,
    proposal: u8,
    token: u8,
    /// The highest token of the grants before the claim began.
    floor: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asking,
    WritingBack,
    Held,
    Releasing,
    CleaningUp,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A client makes a claim and proposes a time.
    Begin(usize, u8),
    /// A node answers what the client's phase asks it.
    Answer(usize, usize),
    /// The script runs, its answer is lost.
    LoseAnswer(usize, usize),
    /// The script will run later; the client waits no longer.
    Delay(usize, usize),
    /// A delayed script runs.
    RunLate(usize, usize),
    /// All nodes were heard: the client goes on.
    Decide(usize),
    /// The deadline passes.
    TimeOut(usize),
    /// The holder's beat.
    Renew(usize),
    /// The guard is dropped.
    Release(usize),
    /// A key goes.
    Expire(usize),
    /// A node restarts empty.
    Restart(usize),
    /// The marker is written again.
    Mark(usize),
}

impl Redlock {
    fn has(&self, step: Step) -> bool {
        self.without != Some(step)
    }
}

impl Protocol for Redlock {
    type Step = Step;
    const NAME: &'static str = "redlock";

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, proposals, faults| Self { without: None, claims, proposals, faults };
        let none = Faults::default();
        vec![
            ("2 + 1", scene([2, 1], &[0], none)),
            ("1 + 1, clocks apart, early", scene([1, 1], &[0, 3], Faults { early: 1, ..none })),
            ("1 + 1, lost", scene([1, 1], &[0], Faults { lost: 1, ..none })),
            ("1 + 1, restart", scene([1, 1], &[0], Faults { restarts: 1, ..none })),
        ]
    }

    /// With three nodes two claims each are too many for a test.
    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, faults| Self { without: None, claims, proposals: &[0], faults };
        let none = Faults::default();
        vec![
            ("2 x 2", scene([2, 2], none)),
            ("2 + 1, a key goes early", scene([2, 1], Faults { early: 1, ..none })),
            ("2 + 1, restart", scene([2, 1], Faults { restarts: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::default();
        let early = Faults { early: 1, ..none };
        let lost = Faults { lost: 1, ..none };
        let restart = Faults { restarts: 1, ..none };
        let removal = |step, breaks, claims, faults| Removal {
            step,
            model: Self { without: Some(step), claims, proposals: &[0], faults },
            breaks,
        };
        vec![
            removal(Step::FastPathNeedsOneValue, UNIQUE, [2, 1], early),
            removal(Step::WriteBackChecksOwner, UNIQUE, [2, 1], early),
            removal(Step::RestoreChecksCounter, NO_REVIVAL, [1, 1], lost),
            removal(Step::ReleaseRaisesCounter, NO_REVIVAL, [1, 1], lost),
            removal(Step::MarkerIsTested, ONE_HOLDER, [1, 1], restart),
            removal(Step::MarkerWaits, ONE_HOLDER, [1, 1], restart),
            removal(Step::MarkerRaisesCounter, UNIQUE, [1, 1], Faults { lost: 1, restarts: 1, ..none }),
        ]
    }
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: Default::default(),
            clients: Default::default(),
            tokens: [0; CLAIMS],
            faults: self.faults,
            gone_early: false,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for (number, client) in state.clients.iter().enumerate() {
            state.actions_of(self, number, client, actions);
        }
        let mut before = None;
        for (number, node) in state.nodes.iter().enumerate() {
            // Of nodes that are alike in everything one is enough.
            if before.replace(node) == Some(node) {
                continue;
            }
            actions.extend((0..node.late.len()).map(|nth| Action::RunLate(number, nth)));
            if node.key.is_some_and(|claim| !state.lives(claim) || state.faults.early > 0) {
                actions.push(Action::Expire(number));
            }
            if state.faults.restarts > 0 {
                actions.push(Action::Restart(number));
            }
            if node.unmarked && state.may_mark(self, number) {
                actions.push(Action::Mark(number));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Begin(client, proposal) => state.begin(client, proposal),
            Action::Answer(client, node) => {
                let heard = state.ask(self, client, node);
                state.nodes[node].heard[client] = heard;
            }
            Action::LoseAnswer(client, node) => {
                state.faults.lost -= 1;
                state.ask(self, client, node);
                state.nodes[node].heard[client] = Heard::No;
            }
            Action::Delay(client, node) => {
                state.faults.lost -= 1;
                let request = state.request(client);
                state.nodes[node].late.push(request);
                state.nodes[node].heard[client] = Heard::No;
            }
            Action::RunLate(node, nth) => {
                let request = state.nodes[node].late.remove(nth);
                state.run(self, node, request);
            }
            Action::Decide(client) => state.decide(self, client),
            Action::TimeOut(client) => state.enter(client, Phase::CleaningUp),
            Action::Renew(client) => state.renew(client),
            Action::Release(client) => state.enter(client, Phase::Releasing),
            Action::Expire(node) => state.expire(node),
            Action::Restart(node) => state.restart(node),
            Action::Mark(node) => state.mark(self, node),
        }
        state.nodes.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let holders = state.clients.iter().filter(|client| client.phase == Phase::Held).count();
                holders <= 1 || state.gone_early
            }),
            Property::always(UNIQUE, |_, state: &State| state.broken != Some(UNIQUE)),
            Property::always(RISING, |_, state: &State| state.broken != Some(RISING)),
            Property::always(NO_REVIVAL, |_, state: &State| state.broken != Some(NO_REVIVAL)),
            Property::sometimes("all claims are granted", |model, state: &State| {
                let granted =
                    |claim: &usize| state.tokens[*claim] > 0 || (claim % 2) as u8 >= model.claims[claim / 2];
                (0..CLAIMS).all(|claim| granted(&claim))
            }),
        ]
    }
}

/// Clients.
impl State {
    fn actions_of(&self, model: &Redlock, number: usize, client: &Client, actions: &mut Vec<Action>) {
        match client.phase {
            Phase::Idle => {
                if client.begun < model.claims[number] {
                    actions.extend(model.proposals.iter().map(|time| Action::Begin(number, *time)));
                }
                return;
            }
            Phase::Asking | Phase::WritingBack => actions.push(Action::TimeOut(number)),
            Phase::Held => {
                actions.extend([Action::Renew(number), Action::Release(number)]);
                for node in 0..NODES {
                    if self.nodes[node].key.is_none() {
                        actions.push(Action::Answer(number, node));
                        if self.faults.lost > 0 {
                            actions.push(Action::Delay(number, node));
                        }
                    }
                }
                return;
            }
            Phase::Releasing | Phase::CleaningUp => {}
        }
        let open = |node: &usize| self.nodes[*node].heard[number] == Heard::Nothing;
        let mut before = None;
        for node in (0..NODES).filter(open) {
            if before.replace(self.nodes[node]) == Some(self.nodes[node]) {
                continue;
            }
            actions.push(Action::Answer(number, node));
            if self.faults.lost > 0 {
                actions.extend([Action::LoseAnswer(number, node), Action::Delay(number, node)]);
            }
        }
        if !(0..NODES).any(|node| open(&node)) {
            actions.push(Action::Decide(number));
        }
    }

    fn begin(&mut self, client: usize, proposal: u8) {
        let floor = self.tokens.iter().max().copied().unwrap_or(0);
        let begun = self.clients[client].begun + 1;
        self.clients[client] = Client { begun, phase: Phase::Asking, proposal, token: 0, floor };
    }

    fn claim(&self, client: usize) -> ClaimNo {
        client as u8 * 2 + self.clients[client].begun.saturating_sub(1)
    }

    fn enter(&mut self, client: usize, phase: Phase) {
        self.clients[client].phase = phase;
        for node in &mut self.nodes {
            node.heard[client] = Heard::Nothing;
        }
    }

    /// What the client's phase asks the nodes.
    fn request(&self, client: usize) -> Request {
        let Client { phase, proposal, token, .. } = self.clients[client];
        let what = match phase {
            Phase::Asking => What::Ask { proposal },
            Phase::WritingBack => What::WriteBack { token },
            Phase::Held => What::Restore { token },
            Phase::Releasing => What::Release { token },
            Phase::CleaningUp | Phase::Idle => What::CleanUp,
        };
        Request { claim: self.claim(client), what }
    }

    fn ask(&mut self, model: &Redlock, client: usize, node: usize) -> Heard {
        let request = self.request(client);
        let heard = self.run(model, node, request);
        // In a hold the nodes are not collected.
        if self.clients[client].phase == Phase::Held { Heard::Nothing } else { heard }
    }

    fn decide(&mut self, model: &Redlock, client: usize) {
        let heard = self.nodes.map(|node| node.heard[client]);
        let yes = || {
            heard
                .iter()
                .filter_map(|heard| if let Heard::Yes(counter) = heard { Some(*counter) } else { None })
        };
        let highest = yes().max().unwrap_or(0);
        let has_majority = yes().count() >= MAJORITY;
        match self.clients[client].phase {
            Phase::Asking if has_majority => {
                let alike = yes().find(|value| yes().filter(|other| other == value).count() >= MAJORITY);
                let token = if model.has(Step::FastPathNeedsOneValue) { alike } else { Some(highest) };
                match token {
                    Some(token) => self.grant(client, token),
                    None => {
                        self.clients[client].token = highest + 1;
                        let owned = self.nodes.map(|node| node.heard[client] != Heard::No);
                        self.enter(client, Phase::WritingBack);
                        for (node, owned) in self.nodes.iter_mut().zip(owned) {
                            node.heard[client] = if owned { Heard::Nothing } else { Heard::No };
                        }
                    }
                }
            }
            Phase::WritingBack if has_majority => self.grant(client, self.clients[client].token),
            Phase::Asking | Phase::WritingBack => self.enter(client, Phase::CleaningUp),
            _ => {
                let claim = usize::from(self.claim(client));
                for node in &mut self.nodes {
                    node.waits_for[claim] = false;
                }
                self.enter(client, Phase::Idle);
                let begun = self.clients[client].begun;
                self.clients[client] = Client { begun, ..Client::default() };
            }
        }
    }

    fn grant(&mut self, client: usize, token: u8) {
        if self.tokens.contains(&token) {
            self.broken = Some(UNIQUE);
        } else if token <= self.clients[client].floor {
            self.broken = Some(RISING);
        }
        let claim = usize::from(self.claim(client));
        self.tokens[claim] = token;
        self.enter(client, Phase::Held);
        self.clients[client].token = token;
        (self.clients[client].proposal, self.clients[client].floor) = (0, 0);
    }

    /// Counts only nodes that still held the key.
    fn renew(&mut self, client: usize) {
        let claim = self.claim(client);
        if self.nodes.iter().filter(|node| node.key == Some(claim)).count() < MAJORITY {
            return self.enter(client, Phase::Releasing);
        }
        for node in &mut self.nodes {
            node.waits_for[usize::from(claim)] = false;
        }
    }

    fn lives(&self, claim: ClaimNo) -> bool {
        let client = usize::from(claim / 2);
        let lives = matches!(self.clients[client].phase, Phase::Asking | Phase::WritingBack | Phase::Held);
        lives && self.claim(client) == claim
    }
}

/// Nodes.
impl State {
    fn run(&mut self, model: &Redlock, number: usize, Request { claim, what }: Request) -> Heard {
        let node = &mut self.nodes[number];
        let mine = node.key == Some(claim);
        if node.unmarked && model.has(Step::MarkerIsTested) {
            return Heard::No;
        }
        match what {
            What::Ask { .. } if mine => Heard::Yes(node.counter),
            What::Ask { proposal } if node.key.is_none() => {
                node.key = Some(claim);
                node.counter = (node.counter + 1).max(proposal);
                Heard::Yes(node.counter)
            }
            What::WriteBack { token } => {
                let mine = mine || !model.has(Step::WriteBackChecksOwner);
                let fits = node.counter <= token;
                if !(mine && fits) {
                    return Heard::No;
                }
                node.counter = token;
                Heard::Yes(token)
            }
            What::Restore { token } => {
                let fits = node.counter <= token || !model.has(Step::RestoreChecksCounter);
                if node.key.is_none() && fits {
                    node.key = Some(claim);
                    if node.released[usize::from(claim)] {
                        self.broken = Some(NO_REVIVAL);
                    }
                }
                Heard::No
            }
            What::Ask { .. } => Heard::No,
            What::CleanUp => {
                if mine {
                    node.key = None;
                }
                Heard::No
            }
            What::Release { token } => {
                if mine {
                    node.key = None;
                }
                if model.has(Step::ReleaseRaisesCounter) {
                    node.counter = node.counter.max(token + 1);
                }
                node.released[usize::from(claim)] = true;
                Heard::No
            }
        }
    }

    fn expire(&mut self, number: usize) {
        let Some(claim) = self.nodes[number].key.take() else { return };
        if self.lives(claim) {
            self.faults.early -= 1;
            self.gone_early = true;
        }
    }

    fn restart(&mut self, number: usize) {
        self.faults.restarts -= 1;
        let mut waits_for = [false; CLAIMS];
        for (claim, waits) in waits_for.iter_mut().enumerate() {
            *waits = self.lives(claim as ClaimNo);
        }
        let node = &mut self.nodes[number];
        (node.key, node.counter, node.unmarked) = (None, 0, true);
        (node.waits_for, node.released) = (waits_for, [false; CLAIMS]);
    }

    /// After a ttl: every claim that may have relied on the node has ended, or was renewed without it. And with enough
    /// others to learn the counter from.
    fn may_mark(&self, model: &Redlock, number: usize) -> bool {
        let waited = !self.nodes[number].waits_for.contains(&true) || !model.has(Step::MarkerWaits);
        waited && self.others(number).count() >= MAJORITY
    }

    fn others(&self, number: usize) -> impl Iterator<Item = &Node> {
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(other, node)| *other != number && !node.unmarked)
            .map(|(_, node)| node)
    }

    fn mark(&mut self, model: &Redlock, number: usize) {
        let highest = self.others(number).map(|node| node.counter).max().unwrap_or(0);
        let node = &mut self.nodes[number];
        node.unmarked = false;
        if model.has(Step::MarkerRaisesCounter) {
            node.counter = node.counter.max(highest);
        }
    }
}
