//! Beats: the lifetimes of what is held start anew at all nodes, and nodes that have lost a lock get it back.
//!
//! * A node does not answer: the others decide. Without a majority that has answered, the beat tells nothing.
//! * No majority has the lock any more: that hold is gone, and ended at the nodes that still have it. A lock that a node
//!   has just got back counts for nothing in that.
//! * Nodes change their addresses meanwhile: one may have answered at two of them, so that the beat tells nothing.
//! * The nodes were set up anew while the client lived: a majority says that it is another set. The session is over, and
//!   the next one finds out what set that is.
//! * A restore arrives late, after the release, or behind another grant: the node's counter is above its token.

use std::sync::Arc;

use lockkit_core::{
    BootInstant,
    backend::{Beat, ClaimId, Grant, Renewal},
    limits::RELEASE_ANSWER_MAX,
};
use tracing::debug;

use super::{
    attempt::Won,
    calls::{Held, beaten, found, look},
    members::of_another_set,
    nodes::{Round, Tell},
    rejoin::Sign,
    session::RedlockSession,
};
use crate::error::Fault;

/// Locks in one request.
const LOCKS_PER_REQUEST: usize = 500;

/// What a node says to a beat; `None`: it has lost its data.
type Answer = Result<Option<Vec<Held>>, Fault>;

/// What has become of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Open,
    Held,
    Gone,
}

/// Where a majority of the nodes is alive.
enum Life {
    /// In the session's set.
    Here,
    /// In one that was set up since.
    Elsewhere,
}

impl RedlockSession {
    pub(super) async fn beat(&self, held: &[Grant]) -> Beat {
        // Whoever waits for the end of a hold asks within that time, and is not to be told that all is well.
        self.forget_ended(RELEASE_ANSWER_MAX);
        let held: Vec<(ClaimId, Won)> =
            held.iter().filter_map(|grant| Some((grant.claim(), self.held(grant.claim())?))).collect();
        let armed_at = self.table.clock.now();
        if held.is_empty() {
            let session = match self.prove_alive().await {
                Ok(Life::Here) => Renewal::Renewed { armed_at },
                Ok(Life::Elsewhere) => Renewal::Gone,
                Err(fault) => unknown(fault),
            };
            return Beat::new(session, Vec::new());
        }
        let batches = held.chunks(LOCKS_PER_REQUEST).map(|batch| self.renew_batch(batch, armed_at));
        let batches = futures_util::future::join_all(batches).await;
        let session = match batches.iter().find_map(|(fault, _)| fault.clone()) {
            Some(fault) => unknown(fault),
            None => Renewal::Renewed { armed_at },
        };
        Beat::new(session, batches.into_iter().flat_map(|(_, holds)| holds).collect())
    }

    /// Why the batch as a whole tells nothing, if so, and what has become of each hold.
    async fn renew_batch(
        &self,
        batch: &[(ClaimId, Won)],
        armed_at: BootInstant,
    ) -> (Option<Fault>, Vec<(ClaimId, Renewal)>) {
        let nodes = &self.table.nodes;
        let mut answers: Vec<Option<Answer>> = vec![None; nodes.count()];
        let moves = nodes.members.moves();
        let mut round = self.ask_all(batch);
        let answered =
            |answers: &[Option<Answer>]| answers.iter().flatten().filter(|one| one.is_ok()).count();
        loop {
            let is_enough = (0..batch.len()).all(|nth| self.verdict(&answers, nth) != Verdict::Open);
            let Some((node, answer)) = round.next(is_enough).await else { break };
            if let Some(slot) = answers.get_mut(node) {
                *slot = Some(answer);
            }
        }
        if nodes.members.moves() != moves {
            let unknown = batch.iter().map(|(claim, _)| (*claim, unknown(nodes.moved())));
            return (Some(nodes.moved()), unknown.collect());
        }
        let fault = (answered(&answers) < nodes.majority()).then(|| nodes.no_majority(faults(&answers)));
        let holds = batch.iter().enumerate().map(|(nth, (claim, won))| {
            let renewal = match self.verdict(&answers, nth) {
                Verdict::Held => {
                    self.restore(won, &answers, nth);
                    Renewal::Renewed { armed_at }
                }
                Verdict::Gone => {
                    debug!(?claim, "no majority has the lock any more");
                    let _ = self.end(*claim);
                    Renewal::Gone
                }
                Verdict::Open => unknown(nodes.no_majority(faults(&answers))),
            };
            (*claim, renewal)
        });
        (fault, holds.collect())
    }

    fn ask_all(&self, batch: &[(ClaimId, Won)]) -> Round<Answer> {
        let asked = batch.len();
        let call = Arc::new(self.table.terms.renew(batch.iter().map(|(_, won)| &won.bid)));
        let limit = self.table.nodes.limit;
        let rejoining = self.table.rejoining.clone();
        self.table.nodes.at_all(move |number, node, tell: Tell<Answer>| {
            let (call, rejoining) = (Arc::clone(&call), rejoining.clone());
            async move {
                let answer = node.run(limit, &call).await.and_then(|answer| beaten(answer, asked));
                if matches!(answer, Ok(None)) {
                    rejoining.found_empty(number);
                }
                tell.tell(answer);
            }
        })
    }

    /// Only nodes that still had the lock count for it.
    fn verdict(&self, answers: &[Option<Answer>], nth: usize) -> Verdict {
        let majority = self.table.nodes.majority();
        let mut open = 0;
        let mut yes = 0;
        for answer in answers {
            match answer {
                None | Some(Err(_)) => open += 1,
                Some(Ok(Some(held))) if held.get(nth) == Some(&Held::Yes) => yes += 1,
                Some(Ok(_)) => {}
            }
        }
        match (yes, open) {
            _ if yes >= majority => Verdict::Held,
            _ if yes + open < majority => Verdict::Gone,
            _ => Verdict::Open,
        }
    }

    /// Brings a lock back to nodes that have lost it, while a majority still has it.
    fn restore(&self, won: &Won, answers: &[Option<Answer>], nth: usize) {
        let is_free = |answer: &Option<Answer>| matches!(answer, Some(Ok(Some(held))) if held.get(nth) == Some(&Held::Free));
        let free = answers.iter().enumerate().filter(|(_, answer)| is_free(answer)).map(|(node, _)| node);
        let free = free.filter(|node| won.may_restore_at(*node));
        let (call, limit) = (Arc::new(self.table.terms.restore(&won.bid, won.token)), self.table.nodes.limit);
        let _: Round<()> = self.table.nodes.at(free, |_, node, _| {
            let call = Arc::clone(&call);
            async move {
                let restored = node.run(limit, &call).await;
                debug!(?restored, node = node.name(), "a node had lost a lock");
            }
        });
    }

    /// With nothing held there is nothing to ask for but a sign of life. Only nodes that count can give it.
    async fn prove_alive(&self) -> Result<Life, Fault> {
        let nodes = &self.table.nodes;
        let (call, limit) = (Arc::new(look()), nodes.limit);
        let rejoining = self.table.rejoining.clone();
        let mut round = nodes.at_all(move |number, node, tell: Tell<Result<Sign, Fault>>| {
            let (call, rejoining) = (Arc::clone(&call), rejoining.clone());
            async move {
                let answer = node.run(limit, &call).await.and_then(found);
                tell.tell(answer.map(|met| rejoining.sign(number, &met)));
            }
        });
        let (mut here, mut elsewhere, mut faults) = (0, 0, Vec::new());
        while let Some((node, answer)) = round.next(here >= nodes.majority()).await {
            match answer {
                Ok(Sign::Counts) => here += 1,
                Ok(Sign::AnotherSet) => {
                    elsewhere += 1;
                    faults.push((node, Some(of_another_set())));
                }
                Ok(Sign::None) => faults.push((node, None)),
                Err(fault) => faults.push((node, Some(fault))),
            }
        }
        match nodes.majority() {
            majority if here >= majority => Ok(Life::Here),
            majority if elsewhere >= majority => Ok(Life::Elsewhere),
            _ => Err(nodes.no_majority(faults.iter().map(|(node, fault)| (*node, fault.as_ref())))),
        }
    }
}

/// The nodes that were of no use, and why.
fn faults(answers: &[Option<Answer>]) -> impl Iterator<Item = (usize, Option<&Fault>)> {
    answers.iter().enumerate().filter_map(|(node, answer)| match answer {
        Some(Err(fault)) => Some((node, Some(fault))),
        Some(Ok(None)) => Some((node, None)),
        _ => None,
    })
}

fn unknown(fault: Fault) -> Renewal {
    Renewal::Unknown(fault.into_error("renew"))
}
