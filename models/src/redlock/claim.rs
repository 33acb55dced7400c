//! A claim, as the backend drives it: its attempt, its renewals and its end.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &Redlock, number: usize, actions: &mut Vec<Action>) {
        let client = &self.clients[number];
        match client.phase {
            Phase::Idle if client.started < model.claims[number] => {
                let proposals: &[u8] = if model.is(CLOCKS_APART) { &[0, 3] } else { &[0] };
                actions.extend(proposals.iter().map(|time| Action::Start(number, *time)));
            }
            Phase::Idle => {}
            Phase::Asking => {
                actions.push(Action::GiveUp(number));
                if self.answers(number).count() >= MAJORITY {
                    actions.push(Action::WriteBack(number));
                }
            }
            Phase::WritingBack => actions.push(Action::GiveUp(number)),
            Phase::Held => actions.extend([Action::Renew(number), Action::Release(number)]),
        }
    }

    /// The actions between a client and a node.
    pub(super) fn actions_of_at(&self, client: usize, node: usize, actions: &mut Vec<Action>) {
        let (phase, progress) = (self.clients[client].phase, self.nodes[node].progress[client]);
        if matches!(progress, Progress::Ask | Progress::AskAgain | Progress::WriteBack) {
            actions.push(Action::Execute(client, node));
        }
        let is_free = self.nodes[node].key.is_none();
        if phase == Phase::Held && is_free {
            actions.push(Action::Restore(client, node));
        }
        let is_sent = match phase {
            Phase::Idle => false,
            Phase::Asking => progress != Progress::Refused,
            Phase::WritingBack => progress == Progress::WriteBack,
            Phase::Held => is_free,
        };
        if is_sent && self.faults.lost > 0 {
            actions.push(Action::Break(client, node));
        }
    }

    pub(super) fn start(&mut self, client: usize, proposal: u8) {
        let started = self.clients[client].started + 1;
        self.clients[client] =
            Client { started, phase: Phase::Asking, proposal, token: 0, floor: self.token_last };
        self.nodes.iter_mut().for_each(|node| node.progress[client] = Progress::Ask);
    }

    /// A node executes what the claim has asked it; an answer that is still waited for counts.
    pub(super) fn execute(&mut self, model: &Redlock, client: usize, number: usize) {
        let Client { phase, proposal, token, .. } = self.clients[client];
        let progress = self.nodes[number].progress[client];
        let kind = match progress {
            Progress::Ask | Progress::AskAgain => RequestKind::Ask { proposal },
            _ => RequestKind::WriteBack { token },
        };
        let request = Request { claim: self.claim(client), kind };
        let Some(counter) = self.run(model, number, request) else {
            self.refuse(model, client, number);
            return;
        };
        self.nodes[number].progress[client] = match (phase, progress) {
            (Phase::Asking, Progress::Ask | Progress::AskAgain) => Progress::Owned(counter),
            (Phase::WritingBack, Progress::WriteBack) => Progress::Written,
            _ => Progress::Nothing,
        };
        match phase {
            Phase::Asking => self.take_fast_path(model, client),
            Phase::WritingBack => {
                let written = self.nodes.iter().filter(|node| node.progress[client] == Progress::Written);
                if written.count() >= MAJORITY {
                    self.grant(client, token);
                }
            }
            _ => {}
        }
    }

    /// The node has refused the ask. If no copy of it can be late, that equals an ask that was not executed.
    fn refuse(&mut self, model: &Redlock, client: usize, number: usize) {
        let (claim, lost) = (self.claim(client), self.faults.lost);
        let node = &mut self.nodes[number];
        let may_be_late = lost > 0 || node.late.iter().any(|request| request.claim == claim);
        let progress = &mut node.progress[client];
        let counts = *progress == Progress::Ask
            || *progress == Progress::AskAgain && !model.has(Step::UncertainAskWithdrawn);
        if counts && may_be_late {
            *progress = Progress::Refused;
        }
    }

    /// The counters in the answers that the claim has.
    fn answers(&self, client: usize) -> impl Iterator<Item = u8> + '_ {
        self.nodes.iter().filter_map(move |node| match node.progress[client] {
            Progress::Owned(counter) => Some(counter),
            _ => None,
        })
    }

    /// If a majority answered one value, it is the token.
    fn take_fast_path(&mut self, model: &Redlock, client: usize) {
        let votes = |value: u8| match model.has(Step::FastPathNeedsOneValue) {
            true => self.answers(client).filter(|answer| *answer == value).count(),
            false => self.answers(client).count(),
        };
        if let Some(token) = self.answers(client).filter(|value| votes(*value) >= MAJORITY).max() {
            self.grant(client, token);
        }
    }

    /// Chooses a token above all answers and writes it back to the nodes that gave them.
    pub(super) fn write_back(&mut self, client: usize) {
        let highest = self.answers(client).max().unwrap_or(0);
        let claim = &mut self.clients[client];
        (claim.phase, claim.token) = (Phase::WritingBack, highest + 1);
        for node in &mut self.nodes {
            if let Progress::Owned(_) = node.progress[client] {
                node.progress[client] = Progress::WriteBack;
            }
        }
    }

    fn grant(&mut self, client: usize, token: u8) {
        if self.tokens.contains(&token) {
            self.broken = Some(UNIQUE);
        } else if token <= self.clients[client].floor {
            self.broken = Some(RISING);
        }
        self.tokens[self.claim(client).index()] = token;
        self.token_last = self.token_last.max(token);
        let claim = &mut self.clients[client];
        (claim.phase, claim.token, claim.floor) = (Phase::Held, token, 0);
        for node in &mut self.nodes {
            if matches!(node.progress[client], Progress::Owned(_) | Progress::Written) {
                node.progress[client] = Progress::Nothing;
            }
        }
    }

    /// The request to this node is executed later, also after the end of the claim. An ask is sent again.
    pub(super) fn break_connection(&mut self, client: usize, number: usize) {
        self.faults.lost -= 1;
        let Client { phase, proposal, token, .. } = self.clients[client];
        let claim = self.claim(client);
        let node = &mut self.nodes[number];
        let kind = match phase {
            Phase::Asking => {
                if node.progress[client] == Progress::Ask {
                    node.progress[client] = Progress::AskAgain;
                }
                RequestKind::Ask { proposal }
            }
            Phase::WritingBack => {
                node.progress[client] = Progress::Nothing;
                RequestKind::WriteBack { token }
            }
            _ => {
                node.progress[client] = Progress::Nothing;
                self.restored.add(claim);
                RequestKind::Restore { token }
            }
        };
        node.late.push(Request { claim, kind });
        node.late.sort_unstable();
    }

    /// A heartbeat renews if a majority has answered it, counting only nodes that still had the key.
    pub(super) fn renew(&mut self, model: &Redlock, client: usize) {
        let claim = self.claim(client);
        let renewed = !self.lacks_majority(client) || !model.has(Step::RenewalNeedsMajority);
        if renewed && model.has(Step::RenewalDropsEmptiedNode) {
            self.nodes.iter_mut().for_each(|node| node.waits_for.remove(claim));
        }
    }

    /// Whether less than a majority of the nodes has the key of the client's claim.
    pub(super) fn lacks_majority(&self, client: usize) -> bool {
        let claim = self.claim(client);
        self.nodes.iter().filter(|node| node.key == Some(claim)).count() < MAJORITY
    }

    pub(super) fn restore(&mut self, model: &Redlock, client: usize, node: usize) {
        self.nodes[node].progress[client] = Progress::Nothing;
        self.restored.add(self.claim(client));
        let kind = RequestKind::Restore { token: self.clients[client].token };
        self.run(model, node, Request { claim: self.claim(client), kind });
    }

    /// The claim ends.
    pub(super) fn end(&mut self, client: usize) {
        let claim = self.claim(client);
        for node in &mut self.nodes {
            let may_come = node.late.iter().any(|request| request.claim == claim);
            if node.progress[client] == Progress::Refused && (node.key == Some(claim) || may_come) {
                self.broken = Some(NO_RESIDUE);
            }
            node.progress[client] = Progress::Nothing;
            node.waits_for.remove(claim);
        }
        let started = self.clients[client].started;
        self.clients[client] = Client { started, ..Client::default() };
    }

    pub(super) fn claim(&self, client: usize) -> ClaimNo {
        ClaimNo(client as u8 * 2 + self.clients[client].started.saturating_sub(1))
    }

    /// Whether the claim is under way or holds the lock.
    pub(super) fn is_active(&self, claim: ClaimNo) -> bool {
        let client = claim.client();
        self.clients[client].phase != Phase::Idle && self.claim(client) == claim
    }

    pub(super) fn holds_last(&self, model: &Redlock, number: usize) -> bool {
        let client = &self.clients[number];
        client.phase == Phase::Held && client.started == model.claims[number]
    }

    /// Resets what makes no difference any more.
    pub(super) fn forget_finished(&mut self) {
        for claim in self.releases.iter() {
            if (0..NODES).all(|node| self.is_release_done(node, claim)) {
                self.releases.remove(claim);
            }
        }
        for claim in self.restored.iter() {
            if !self.is_active(claim) && !self.releases.has(claim) {
                self.restored.remove(claim);
            }
        }
        // Every later claim has a floor that is not below.
        let asks = |client: &&Client| matches!(client.phase, Phase::Asking | Phase::WritingBack);
        let floor = self.clients.iter().filter(asks).map(|client| client.floor).min().unwrap_or(u8::MAX);
        for claim in ClaimNo::all() {
            let token = self.tokens[claim.index()];
            if token <= floor && !self.is_active(claim) && !self.releases.has(claim) {
                self.tokens[claim.index()] = 0;
            }
        }
    }
}
