//! What a claim does: `attempt.rs`, `tally.rs`, `renew.rs` and `ending.rs` of the backend.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &Redlock, number: usize, actions: &mut Vec<Action>) {
        let client = &self.clients[number];
        match client.phase {
            Phase::Idle if client.begun < model.claims[number] => {
                actions.extend(model.proposals.iter().map(|time| Action::Begin(number, *time)));
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

    /// What may happen between a client and a node.
    pub(super) fn actions_of_at(&self, client: usize, node: usize, actions: &mut Vec<Action>) {
        let (phase, asked) = (self.clients[client].phase, self.nodes[node].asked[client]);
        if matches!(asked, Asked::Ask | Asked::AskAgain | Asked::WriteBack) {
            actions.push(Action::Execute(client, node));
        }
        let is_free = self.nodes[node].key.is_none();
        if phase == Phase::Held && is_free {
            actions.push(Action::Restore(client, node));
        }
        let is_sent = match phase {
            Phase::Idle => false,
            Phase::Asking => asked != Asked::Refused,
            Phase::WritingBack => asked == Asked::WriteBack,
            Phase::Held => is_free,
        };
        if is_sent && self.faults.lost > 0 {
            actions.push(Action::Break(client, node));
        }
    }

    pub(super) fn begin(&mut self, client: usize, proposal: u8) {
        let begun = self.clients[client].begun + 1;
        self.clients[client] =
            Client { begun, phase: Phase::Asking, proposal, token: 0, floor: self.token_last };
        self.nodes.iter_mut().for_each(|node| node.asked[client] = Asked::Ask);
    }

    /// A node executes what the claim has asked it; an answer that is still waited for counts.
    pub(super) fn execute(&mut self, model: &Redlock, client: usize, number: usize) {
        let Client { phase, proposal, token, .. } = self.clients[client];
        let asked = self.nodes[number].asked[client];
        let what = match asked {
            Asked::Ask | Asked::AskAgain => What::Ask { proposal },
            _ => What::WriteBack { token },
        };
        let request = Request { claim: self.claim(client), what };
        let Some(counter) = self.run(model, number, request) else {
            self.refuse(model, client, number);
            return;
        };
        self.nodes[number].asked[client] = match (phase, asked) {
            (Phase::Asking, Asked::Ask | Asked::AskAgain) => Asked::Owned(counter),
            (Phase::WritingBack, Asked::WriteBack) => Asked::Written,
            _ => Asked::Nothing,
        };
        match phase {
            Phase::Asking => self.take_fast_path(model, client),
            Phase::WritingBack => {
                let written = self.nodes.iter().filter(|node| node.asked[client] == Asked::Written);
                if written.count() >= MAJORITY {
                    self.grant(client, token);
                }
            }
            _ => {}
        }
    }

    /// The node has refused the ask. Where no copy of it can be late, that is as if it were not executed.
    fn refuse(&mut self, model: &Redlock, client: usize, number: usize) {
        let (claim, lost) = (self.claim(client), self.faults.lost);
        let node = &mut self.nodes[number];
        let may_be_late = lost > 0 || node.late.iter().any(|request| request.claim == claim);
        let asked = &mut node.asked[client];
        let counts = *asked == Asked::Ask || *asked == Asked::AskAgain && !model.has(Step::DoubtIsTakenBack);
        if counts && may_be_late {
            *asked = Asked::Refused;
        }
    }

    /// The counters that the claim was answered.
    fn answers(&self, client: usize) -> impl Iterator<Item = u8> + '_ {
        self.nodes.iter().filter_map(move |node| match node.asked[client] {
            Asked::Owned(counter) => Some(counter),
            _ => None,
        })
    }

    /// One value from a majority is the token.
    fn take_fast_path(&mut self, model: &Redlock, client: usize) {
        let votes = |value: u8| match model.has(Step::FastPathNeedsOneValue) {
            true => self.answers(client).filter(|answer| *answer == value).count(),
            false => self.answers(client).count(),
        };
        if let Some(token) = self.answers(client).filter(|value| votes(*value) >= MAJORITY).max() {
            self.grant(client, token);
        }
    }

    /// The token is above all answers; it is written back to the nodes that gave them.
    pub(super) fn write_back(&mut self, client: usize) {
        let highest = self.answers(client).max().unwrap_or(0);
        let claim = &mut self.clients[client];
        (claim.phase, claim.token) = (Phase::WritingBack, highest + 1);
        for node in &mut self.nodes {
            if let Asked::Owned(_) = node.asked[client] {
                node.asked[client] = Asked::WriteBack;
            }
        }
    }

    fn grant(&mut self, client: usize, token: u8) {
        if self.tokens.contains(&token) {
            self.broken = Some(UNIQUE);
        } else if token <= self.clients[client].floor {
            self.broken = Some(RISING);
        }
        self.tokens[usize::from(self.claim(client))] = token;
        self.token_last = self.token_last.max(token);
        let claim = &mut self.clients[client];
        (claim.phase, claim.token, claim.floor) = (Phase::Held, token, 0);
        for node in &mut self.nodes {
            if matches!(node.asked[client], Asked::Owned(_) | Asked::Written) {
                node.asked[client] = Asked::Nothing;
            }
        }
    }

    /// The request to this node is executed later, whatever becomes of the claim; an ask is sent again.
    pub(super) fn break_connection(&mut self, client: usize, number: usize) {
        self.faults.lost -= 1;
        let Client { phase, proposal, token, .. } = self.clients[client];
        let claim = self.claim(client);
        let node = &mut self.nodes[number];
        let what = match phase {
            Phase::Asking => {
                if node.asked[client] == Asked::Ask {
                    node.asked[client] = Asked::AskAgain;
                }
                What::Ask { proposal }
            }
            Phase::WritingBack => {
                node.asked[client] = Asked::Nothing;
                What::WriteBack { token }
            }
            _ => {
                node.asked[client] = Asked::Nothing;
                What::Restore { token }
            }
        };
        node.late.push(Request { claim, what });
        node.late.sort_unstable();
    }

    /// A beat that a majority has answered, counting only nodes that still had the key.
    pub(super) fn renew(&mut self, model: &Redlock, client: usize) {
        let claim = self.claim(client);
        let had_it = self.nodes.iter().filter(|node| node.key == Some(claim)).count();
        let renewed = had_it >= MAJORITY || !model.has(Step::RenewNeedsMajority);
        if renewed && model.has(Step::RenewMakesUp) {
            self.nodes.iter_mut().for_each(|node| node.waits_for.remove(claim));
        }
    }

    pub(super) fn restore(&mut self, model: &Redlock, client: usize, node: usize) {
        self.nodes[node].asked[client] = Asked::Nothing;
        let what = What::Restore { token: self.clients[client].token };
        self.run(model, node, Request { claim: self.claim(client), what });
    }

    /// The claim is over.
    pub(super) fn end(&mut self, client: usize) {
        let claim = self.claim(client);
        for node in &mut self.nodes {
            let may_come = node.late.iter().any(|request| request.claim == claim);
            if node.asked[client] == Asked::Refused && (node.key == Some(claim) || may_come) {
                self.broken = Some(NO_RESIDUE);
            }
            node.asked[client] = Asked::Nothing;
            node.waits_for.remove(claim);
        }
        let begun = self.clients[client].begun;
        self.clients[client] = Client { begun, ..Client::default() };
    }

    pub(super) fn claim(&self, client: usize) -> ClaimNo {
        client as u8 * 2 + self.clients[client].begun.saturating_sub(1)
    }

    /// Whether a key of this claim is worth something to its client.
    pub(super) fn lives(&self, claim: ClaimNo) -> bool {
        let client = usize::from(claim / 2);
        self.clients[client].phase != Phase::Idle && self.claim(client) == claim
    }

    pub(super) fn holds_last(&self, model: &Redlock, number: usize) -> bool {
        let client = &self.clients[number];
        client.phase == Phase::Held && client.begun == model.claims[number]
    }

    /// What makes no difference any more.
    pub(super) fn forget_what_is_over(&mut self) {
        for claim in self.releases.iter() {
            if (0..NODES).all(|node| self.is_release_done(node, claim)) {
                self.releases.remove(claim);
            }
        }
        // Every later claim has a floor that is not below.
        let asks = |client: &&Client| matches!(client.phase, Phase::Asking | Phase::WritingBack);
        let floor = self.clients.iter().filter(asks).map(|client| client.floor).min().unwrap_or(u8::MAX);
        for claim in 0..CLAIMS as ClaimNo {
            let token = self.tokens[usize::from(claim)];
            if token <= floor && !self.lives(claim) && !self.releases.has(claim) {
                self.tokens[usize::from(claim)] = 0;
            }
        }
    }
}
