//! The numbers of a state of which only the order matters.

use super::*;

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
            What::LeaveEmpty { own, .. } | What::LeaveUntold { own, .. } => visit(CREATED, own),
            What::HandOver { own, to, .. } => {
                visit(CREATED, own);
                visit(CREATED, &mut to.1);
            }
            What::Withdraw { .. } => {}
        }
    }
}
