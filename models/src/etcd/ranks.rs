//! The numbers in a state of which only the order matters.

use super::*;

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut dyn FnMut(Domain, &mut Rank)) {
        self.tokens.each_rank(CREATED, visit);
        self.keys.iter_mut().flatten().for_each(|key| visit(CREATED, &mut key.created));
        for client in 0..CLIENTS {
            visit(EPOCH + client, &mut self.epochs[client]);
            visit(EPOCH + client, &mut self.clients[client].epoch);
        }
        for handoff in self.handoffs.iter_mut().flat_map(|handoffs| handoffs.iter_mut()) {
            visit(CREATED, &mut handoff.1);
        }
        self.late.iter_mut().for_each(|request| request.each_rank(visit));
        for (number, claim) in ClaimNo::all().zip(&mut self.claims) {
            for created in [&mut claim.own, &mut claim.early_handoff] {
                visit(CREATED, created);
            }
            claim.predecessor.iter_mut().for_each(|contender| visit(CREATED, &mut contender.1));
            match &mut claim.call {
                Call::Idle => {}
                Call::Sent(request) => request.each_rank(visit),
                Call::Enqueued(answer) => {
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
        match &mut self.kind {
            RequestKind::Enqueue { epoch } => visit(EPOCH + self.claim.client(), epoch),
            RequestKind::LeaveEmpty { own, .. } | RequestKind::LeaveWithoutHandoff { own, .. } => {
                visit(CREATED, own)
            }
            RequestKind::LeaveWithHandoff { own, to, .. } => {
                visit(CREATED, own);
                visit(CREATED, &mut to.1);
            }
            RequestKind::Withdraw { .. } => {}
        }
    }
}
