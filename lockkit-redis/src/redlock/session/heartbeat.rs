//! Heartbeats: renew all held locks at all nodes, and restore locks at nodes that have lost them.
//!
//! * A node does not reply: the other nodes decide. Without replies from a majority, the result is unknown.
//! * No majority has the lock any more: the hold is lost, and its keys are removed at the nodes that still have them. A
//!   lock that this heartbeat restores at a node does not count.
//! * The nodes were set up again while the client ran: a majority reports another set. The session ends, and the next
//!   one joins the new set.
//! * A restore arrives after another grant, or after the release, which knows that one was sent: the node's counter is
//!   above its token, so it is refused.

use std::sync::Arc;

use lockkit_core::{
    BootInstant,
    backend::{ClaimId, Grant, Renewal, Renewals},
    limits::RELEASE_ANSWER_MAX,
};
use tracing::debug;

use super::{RedlockSession, granted_attempt::WonAttempt};
use crate::{
    error::RequestError,
    redlock::{
        membership::{NodeStatus, other_set_fault},
        nodes::NodeFault,
        round::{ReplySender, Round},
        wire::{RenewReply, look, node_state, renew_replies},
    },
};

/// Locks in one request.
pub(super) const LOCKS_PER_REQUEST: usize = 500;

/// A node's reply to a heartbeat; `None` if the node has lost its data.
type BatchReply = Result<Option<Vec<RenewReply>>, RequestError>;

/// The state of one hold by the replies so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VotedState {
    Unknown,
    Held,
    Gone,
}

/// Which set a majority of the nodes belongs to.
enum SetStatus {
    /// The session's set.
    Current,
    /// Another set, which was set up since.
    Replaced,
}

impl RedlockSession {
    pub(super) async fn heartbeat(&self, held: &[Grant]) -> Renewals {
        // The end of a hold is asked for within that time. Forgetting it earlier would report a release that was not
        // confirmed.
        self.forget_expired(RELEASE_ANSWER_MAX);
        let held: Vec<(ClaimId, WonAttempt)> =
            held.iter().filter_map(|grant| Some((grant.claim(), self.active_hold(grant.claim())?))).collect();
        let armed_at = self.context.clock.now();
        if held.is_empty() {
            let session = match self.check_set().await {
                Ok(SetStatus::Current) => Renewal::Renewed { armed_at },
                Ok(SetStatus::Replaced) => Renewal::Gone,
                Err(fault) => unknown(fault),
            };
            return Renewals::new(session, Vec::new());
        }
        let batches = held.chunks(LOCKS_PER_REQUEST).map(|batch| self.renew_batch(batch, armed_at));
        let batches = futures_util::future::join_all(batches).await;
        let session = match batches.iter().find_map(|(fault, _)| fault.clone()) {
            Some(fault) => unknown(fault),
            None => Renewal::Renewed { armed_at },
        };
        Renewals::new(session, batches.into_iter().flat_map(|(_, holds)| holds).collect())
    }

    /// Renews some holds. Returns the fault if no majority replied, and the renewal of each hold.
    async fn renew_batch(
        &self,
        batch: &[(ClaimId, WonAttempt)],
        armed_at: BootInstant,
    ) -> (Option<RequestError>, Vec<(ClaimId, Renewal)>) {
        let nodes = &self.context.nodes;
        let mut answers: Vec<Option<BatchReply>> = vec![None; nodes.count()];
        let mut round = self.send_renewals(batch);
        let answered =
            |answers: &[Option<BatchReply>]| answers.iter().flatten().filter(|one| one.is_ok()).count();
        loop {
            let is_enough = (0..batch.len()).all(|nth| self.hold_state(&answers, nth) != VotedState::Unknown);
            let Some((node, answer)) = round.next(is_enough).await else { break };
            if let Some(slot) = answers.get_mut(node) {
                *slot = Some(answer);
            }
        }
        let fault = (answered(&answers) < nodes.majority()).then(|| nodes.no_majority(&faults(&answers)));
        let holds = batch.iter().enumerate().map(|(nth, (claim, won))| {
            let renewal = match self.hold_state(&answers, nth) {
                VotedState::Held => {
                    self.restore(won, &answers, nth);
                    Renewal::Renewed { armed_at }
                }
                VotedState::Gone => {
                    debug!(?claim, "hold lost: no majority has the lock");
                    let _ = self.begin_release(*claim);
                    Renewal::Gone
                }
                VotedState::Unknown => unknown(nodes.no_majority(&faults(&answers))),
            };
            (*claim, renewal)
        });
        (fault, holds.collect())
    }

    fn send_renewals(
        &self,
        batch: &[(ClaimId, WonAttempt)],
    ) -> Round<BatchReply, impl Future<Output = ()> + Send + use<>> {
        let asked = batch.len();
        let call = self.context.requests.renew(batch.iter().map(|(_, won)| &won.attempt));
        let rejoiner = self.context.rejoiner.clone();
        self.context.nodes.ask(call, move |number, answer| {
            let replies = renew_replies(answer, asked)?;
            if replies.is_none() {
                rejoiner.start_rejoin(number);
            }
            Ok(replies)
        })
    }

    /// Only nodes that still had the lock count for it.
    fn hold_state(&self, answers: &[Option<BatchReply>], nth: usize) -> VotedState {
        let majority = self.context.nodes.majority();
        let mut unanswered = 0;
        let mut holding = 0;
        for answer in answers {
            match answer {
                None | Some(Err(_)) => unanswered += 1,
                Some(Ok(Some(held))) if held.get(nth) == Some(&RenewReply::Held) => holding += 1,
                Some(Ok(_)) => {}
            }
        }
        match (holding, unanswered) {
            _ if holding >= majority => VotedState::Held,
            _ if holding + unanswered < majority => VotedState::Gone,
            _ => VotedState::Unknown,
        }
    }

    /// Restores a lock at nodes that have lost it, while a majority still has it.
    fn restore(&self, won: &WonAttempt, answers: &[Option<BatchReply>], nth: usize) {
        let is_free = |answer: &Option<BatchReply>| match answer {
            Some(Ok(Some(held))) => held.get(nth) == Some(&RenewReply::Free),
            _ => false,
        };
        let free = answers.iter().enumerate().filter(|(_, answer)| is_free(answer)).map(|(node, _)| node);
        let free: Vec<usize> = free.filter(|node| won.may_restore_at(*node)).collect();
        if free.is_empty() {
            return;
        }
        let restore = self.context.requests.restore(&won.attempt, won.token, &won.metadata());
        let (call, limit) = (Arc::new(restore), self.context.nodes.limit);
        let round = self.context.nodes.at(free, |_, node, _: ReplySender<()>| {
            let call = Arc::clone(&call);
            async move {
                let restored = node.run(limit, &call).await;
                debug!(?restored, node = node.name(), "restored a lock that a node had lost");
            }
        });
        round.in_background();
    }

    /// The heartbeat of a session without holds: checks that a majority of the set replies. Only nodes that count are
    /// counted.
    async fn check_set(&self) -> Result<SetStatus, RequestError> {
        let nodes = &self.context.nodes;
        let rejoiner = self.context.rejoiner.clone();
        let mut round =
            nodes.ask(look(), move |number, answer| Ok(rejoiner.status(number, &node_state(answer)?)));
        let (mut current, mut replaced, mut faults) = (0, 0, Vec::new());
        while let Some((node, answer)) = round.next(current >= nodes.majority()).await {
            match answer {
                Ok(NodeStatus::Counts) => current += 1,
                Ok(NodeStatus::AnotherSet) => {
                    replaced += 1;
                    faults.push((node, Some(other_set_fault())));
                }
                Ok(NodeStatus::NotCounting) => faults.push((node, None)),
                Err(fault) => faults.push((node, Some(fault))),
            }
        }
        match nodes.majority() {
            majority if current >= majority => Ok(SetStatus::Current),
            majority if replaced >= majority => Ok(SetStatus::Replaced),
            _ => Err(nodes.no_majority(&faults)),
        }
    }
}

/// Returns the nodes that did not take part, and why.
fn faults(answers: &[Option<BatchReply>]) -> Vec<NodeFault> {
    let faults = answers.iter().enumerate().filter_map(|(node, answer)| match answer {
        Some(Err(fault)) => Some((node, Some(fault.clone()))),
        Some(Ok(None)) => Some((node, None)),
        _ => None,
    });
    faults.collect()
}

fn unknown(fault: RequestError) -> Renewal {
    Renewal::Unknown(fault.into_error("renew"))
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::HANG;

    use super::*;
    use crate::{
        redlock::{
            node::name_of,
            session::{
                sent_requests::SentRequests,
                tests::{add_hold, session_at},
            },
        },
        tests::scripted::{Answer, ScriptedServer, greeting},
    };

    /// A majority has answered the first one.
    #[tokio::test]
    async fn session_is_not_renewed_if_the_second_request_of_a_heartbeat_fails() {
        let mut nodes = Vec::new();
        for _ in 0..2 {
            let server = ScriptedServer::start(|_| {
                |_, words: &[String]| match &*words[0] {
                    "EVALSHA" => Answer::Text(match &*words[2] {
                        // The state of the node.
                        "1" => "*4\r\n$0\r\n\r\n:0\r\n$0\r\n\r\n:0\r\n".to_owned(),
                        // The heartbeat of one lock.
                        "3" => "-BUSY a script\r\n".to_owned(),
                        _ => format!("*{LOCKS_PER_REQUEST}\r\n{}", ":1\r\n".repeat(LOCKS_PER_REQUEST)),
                    }),
                    _ => greeting(words),
                }
            });
            nodes.push(name_of(&server.await.address));
        }
        let session = session_at([&*nodes[0], &*nodes[1], "127.0.0.1:3"], HANG);
        let held: Vec<Grant> =
            (0..=LOCKS_PER_REQUEST).map(|_| add_hold(&session, SentRequests::mark_touched)).collect();
        let renewals = session.heartbeat(&held).await;
        let is_renewed = |renewal: &Renewal| matches!(renewal, Renewal::Renewed { .. });
        let renewed = renewals.holds.iter().filter(|(_, renewal)| is_renewed(renewal)).count();
        assert_eq!((renewed, is_renewed(&renewals.session)), (LOCKS_PER_REQUEST, false));
    }
}
