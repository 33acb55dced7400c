//! The leader.

use super::*;

impl State {
    pub(super) fn create(&mut self, claim: ClaimNo) -> Node {
        self.zxid += 1;
        let node =
            Node { claim, number: self.next_number, czxid: self.zxid, session: self.session_of(claim) };
        self.next_number = (self.next_number + 1) % NUMBERS;
        self.nodes.push(node);
        node
    }

    pub(super) fn delete(&mut self, claim: ClaimNo) {
        let own = self.claim(claim).own;
        if let Some(nth) = self.nodes.iter().position(|node| Some(*node) == own) {
            self.remove(nth);
        }
    }

    pub(super) fn remove(&mut self, nth: usize) {
        self.zxid += 1;
        self.nodes.remove(nth);
    }

    pub(super) fn expire(&mut self, client: usize) {
        if !self.clients[client].second_session {
            self.faults.lapses -= 1;
        }
        self.clients[client].first_expired = true;
        self.zxid += 1;
        let session = (client, false);
        while let Some(nth) = self.nodes.iter().position(|node| node.session == session) {
            self.nodes.remove(nth);
        }
    }
}
