//! The numbers in a state of which only the order matters.

use super::*;

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut impl FnMut(Domain, &mut Rank)) {
        self.tokens.each_rank(CREATED, visit);
        self.keys.iter_mut().flatten().for_each(|key| visit(CREATED, &mut key.created));
        for client in 0..CLIENTS {
            visit(EPOCH + client, &mut self.epochs[client]);
            visit(EPOCH + client, &mut self.clients[client].epoch);
            visit(CREATED, &mut self.clients[client].order.after);
            each_created(&mut self.clients[client].order.keys, visit);
        }
        for handoff in self.handoffs.iter_mut().flat_map(|handoffs| handoffs.iter_mut()) {
            handoff.each_rank(visit);
        }
        self.late.iter_mut().for_each(|request| request.each_rank(visit));
        for (number, claim) in ClaimNo::all().zip(&mut self.claims) {
            for created in [&mut claim.own, &mut claim.early_handoff] {
                visit(CREATED, created);
            }
            visit(EPOCH + number.client(), &mut claim.unanswered_epoch);
            claim.predecessor.iter_mut().for_each(|contender| visit(CREATED, &mut contender.1));
            match &mut claim.call {
                Call::Idle => {}
                Call::Sent(request) => request.each_rank(visit),
                Call::Enqueued(answer) => {
                    visit(CREATED, &mut answer.own);
                    visit(EPOCH + number.client(), &mut answer.epoch);
                }
            }
        }
    }
}

/// The create revisions of contenders.
fn each_created(contenders: &mut [Contender], visit: &mut impl FnMut(Domain, &mut Rank)) {
    contenders.iter_mut().for_each(|contender| visit(CREATED, &mut contender.1));
}

impl Ranked for Handoff {
    fn each_rank(&mut self, visit: &mut impl FnMut(Domain, &mut Rank)) {
        visit(CREATED, &mut self.to.1);
        each_created(&mut self.next, visit);
    }
}

impl Ranked for Request {
    fn each_rank(&mut self, visit: &mut impl FnMut(Domain, &mut Rank)) {
        match &mut self.kind {
            RequestKind::Enqueue { epoch } => visit(EPOCH + self.claim.client(), epoch),
            RequestKind::LeaveEmpty { own, .. } | RequestKind::LeaveWithoutHandoff { own, .. } => {
                visit(CREATED, own)
            }
            RequestKind::LeaveWithHandoff { own, handoff, .. } => {
                visit(CREATED, own);
                handoff.each_rank(visit);
            }
            RequestKind::Withdraw { .. } => {}
        }
    }
}
