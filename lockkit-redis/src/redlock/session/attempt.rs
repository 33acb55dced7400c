//! One attempt at a lock: ask all nodes, then write back if needed, or clean up everywhere.
//!
//! Failure cases:
//!
//! * A node's reply is lost or late: the other nodes decide. The request continues in the background. If the node turns
//!   out to have granted the lock to an attempt that is over, the key is removed.
//! * The connection breaks during a request: the request is sent again within its time limit. The node recognizes the
//!   attempt.
//! * Many late replies of one node are being awaited: further ones are not, so that the waiters of a node that stays
//!   silent do not gather tasks. A key that such a request sets after the clean-up expires.
//! * Half of the nodes grant: the keys are removed at once at all nodes, also at those that refused or did not reply.
//! * The nodes reply too slowly: a majority counts only before the deadline, which is measured from before the first
//!   request.
//! * A node cannot be reached at all: nothing is removed there, so a node that is away for long costs nothing.
//! * A request of an attempt is delayed for long: each attempt has its own id, so it can affect no other attempt.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkit_core::{Clock, FencingToken, backend::ClaimId, lease};
use tokio::time::Instant;

use super::{
    granted_attempt::WonAttempt,
    release::{Removal, RetryPolicy, clean_up_late},
    sent_requests::SentRequests,
    votes::{AskOutcome, Vote, Votes},
};
use crate::{
    error::RequestError,
    keys::LockKeys,
    redlock::{
        membership::Rejoiner,
        node::Node,
        node_call::NodeCall,
        nodes::Nodes,
        round::ReplySender,
        wire::{Attempt, ClaimReply, RequestBuilder, claim_reply},
    },
};

/// After this time without a reply, a connection will not deliver one.
const LATE_REPLY_MAX: Duration = Duration::from_secs(600);

/// Late replies that are awaited at one node at a time.
pub(crate) const LATE_ASKS_MAX: usize = 256;

/// What all attempts of a session share.
#[derive(Clone, Debug)]
pub(crate) struct SessionContext {
    pub(crate) nodes: Nodes,
    pub(crate) requests: RequestBuilder,
    pub(crate) ttl: Duration,
    pub(crate) clock: Clock,
    pub(crate) rejoiner: Rejoiner,
}

/// The result of an attempt.
#[derive(Debug)]
pub(super) enum VoteOutcome {
    Won(WonAttempt),
    /// Another claim has the lock, or asked at the same time. Nothing is left at the nodes.
    Contended,
    /// Too few nodes replied, or too late. Nothing is left at the nodes that can be reached.
    Failed(RequestError),
}

impl SessionContext {
    /// Makes one attempt, with these metadata as JSON.
    pub(super) async fn attempt(&self, keys: &Arc<LockKeys>, metadata: &Arc<str>) -> VoteOutcome {
        let attempt = Attempt { id: ClaimId::random(), keys: Arc::clone(keys) };
        let sent = Arc::new(SentRequests::default());
        let armed_at = self.clock.now();
        let asked = self.ask(&attempt, metadata, &sent).await;
        let answered = match asked.ask_outcome(true) {
            AskOutcome::Agreed(token) => Ok(token),
            AskOutcome::NeedsWriteBack(token) => self.write_back(&attempt, &asked, token).await,
            AskOutcome::Undecided | AskOutcome::NoMajority => Err(asked),
        };
        let failed = match answered {
            Ok(token) if self.clock.now() < lease::deadline(armed_at, self.ttl) => {
                return VoteOutcome::Won(WonAttempt::new(attempt, token, armed_at, metadata, sent));
            }
            Ok(_) => VoteOutcome::Failed(self.nodes.too_slow()),
            Err(votes) if votes.is_contended() => VoteOutcome::Contended,
            Err(votes) => VoteOutcome::Failed(self.nodes.no_majority(&votes.faults())),
        };
        let removal = Removal::begin(&self.nodes, attempt.clean_up(), &sent, RetryPolicy::Bounded, self.ttl);
        match (failed, removal.confirmed().await) {
            // The lock is busy, but a key of this attempt may be left: that is a failure.
            (VoteOutcome::Contended, Err(fault)) => VoteOutcome::Failed(fault),
            (failed, _) => failed,
        }
    }

    /// Asks all nodes for the lock.
    async fn ask(&self, attempt: &Attempt, metadata: &str, sent: &Arc<SentRequests>) -> Votes {
        let task = Arc::new(AskTask {
            ask: self.requests.ask(attempt, wall_clock_us(), metadata),
            attempt: attempt.clone(),
            limit: self.nodes.limit,
            lifetime: self.ttl,
            sent: Arc::clone(sent),
        });
        let mut votes = Votes::new(self.nodes.count());
        let mut round = self.nodes.at_all(|number, node, reply| Arc::clone(&task).run(number, node, reply));
        while match votes.ask_outcome(false) {
            AskOutcome::Undecided => true,
            // A node that is down fails sooner than others reply, so this waits for the replies that explain the
            // failure.
            AskOutcome::NoMajority => !votes.is_contention_decided(),
            AskOutcome::Agreed(_) | AskOutcome::NeedsWriteBack(_) => false,
        } {
            let Some((node, answer)) = round.next(votes.is_owned_by_majority()).await else { break };
            if matches!(answer, Ok(ClaimReply::Empty)) {
                self.rejoiner.start_rejoin(node);
            }
            votes.record(node, answer);
        }
        votes
    }

    /// Stores the token as the counter at the nodes that granted. A majority must confirm it.
    async fn write_back(
        &self,
        attempt: &Attempt,
        asked: &Votes,
        token: FencingToken,
    ) -> Result<FencingToken, Votes> {
        let call = self.requests.write_back(attempt, token);
        let mut votes = Votes::for_write_back(asked);
        let mut round = self.nodes.ask_some(asked.owned_nodes(), call, |_, answer| claim_reply(answer));
        while !votes.is_write_back_decided() {
            let Some((node, answer)) = round.next(false).await else { break };
            votes.record(node, answer);
        }
        if votes.is_owned_by_majority() { Ok(token) } else { Err(votes) }
    }
}

/// The ask at the nodes, which is owned until its effect is known.
struct AskTask {
    ask: NodeCall,
    attempt: Attempt,
    limit: Duration,
    lifetime: Duration,
    sent: Arc<SentRequests>,
}

impl AskTask {
    async fn run(self: Arc<Self>, number: usize, node: Arc<Node>, reply: ReplySender<Vote>) {
        // On every return, the early ones too.
        let settled = self.sent.settle_on_drop(number);
        let deadline = Instant::now() + self.limit;
        let may_run_later = loop {
            let connection = match node.connection(deadline).await {
                Ok(connection) => connection,
                Err(fault) => return reply.send(Err(fault)),
            };
            let executing = node.run_on(&connection, &self.ask);
            tokio::pin!(executing);
            let answer = tokio::time::timeout_at(deadline, &mut executing).await;
            let answer = answer.map(|answer| answer.and_then(claim_reply));
            match &answer {
                Ok(Ok(ClaimReply::Refused | ClaimReply::Empty)) => self.sent.mark_refused(number),
                Ok(Err(fault)) if !fault.may_have_executed() && !fault.may_be_from_script() => {}
                _ => self.sent.mark_touched(number),
            }
            match answer {
                // The connection broke. The node may have executed the request, so it is sent again.
                Ok(Err(fault)) if fault.may_have_executed() && !self.is_over() => {}
                Ok(answer) => {
                    let may_run_later = answer.as_ref().is_err_and(RequestError::may_have_executed);
                    reply.send(answer);
                    drop(settled);
                    break may_run_later;
                }
                Err(_) => {
                    connection.give_up();
                    reply.send(Err(RequestError::no_reply()));
                    drop(settled);
                    // The attempt continues without this node, but the node may still execute the request.
                    let Ok(_permit) = node.late_asks.try_acquire() else { break true };
                    let late = tokio::time::timeout(LATE_REPLY_MAX, executing).await;
                    break !matches!(late, Ok(Err(fault)) if !fault.may_have_executed());
                }
            }
        };
        // If the attempt ends only after this check, its own clean-up is sent later and finds the key.
        if may_run_later && self.is_over() {
            Box::pin(clean_up_late(&node, self.limit, self.attempt.clean_up(), self.lifetime)).await;
        }
    }

    fn is_over(&self) -> bool {
        self.sent.has_ended()
    }
}

/// Returns the client's proposal for a counter: its wall clock.
fn wall_clock_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_conformance::direct::{HANG, until};
    use lockkit_core::{BootInstant, limits::RETRY_PAUSE_MIN};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        reconnect::OpenConnection,
        redlock::{hints::Hints, node_call::NODE},
        tests::{
            keys,
            scripted::{Answer, ScriptedServer, greeting},
            set_clock,
        },
        topology::{Connector, Dialer, Login, Topology},
    };

    const UNKNOWN_NODE: &str = "*4\r\n$0\r\n\r\n:0\r\n$0\r\n\r\n:0\r\n";

    fn nodes_at(topology: Topology) -> Nodes {
        let dialer = Dialer { login: Login::default(), tls: None, timeout: HANG };
        let connector = Connector { topology, dialer, sentinel_login: Login::default(), cluster_retries: 0 };
        Nodes::connect(&connector, HANG, Hints::default())
    }

    /// Connects to one node.
    async fn node_at(server: ScriptedServer) -> (Nodes, OpenConnection) {
        let nodes = nodes_at(Topology::Single(server.address));
        let open = nodes.get(0).unwrap().connection(Instant::now() + HANG).await.unwrap();
        (nodes, open)
    }

    /// An ask that does not wait for long.
    fn impatient_ask() -> Arc<AskTask> {
        let attempt = Attempt { id: ClaimId::random(), keys: Arc::new(keys()) };
        Arc::new(AskTask {
            ask: RequestBuilder { ttl_ms: 1000, keep_ms: 1000 }.ask(&attempt, 1, "{}"),
            attempt,
            limit: Duration::from_millis(100),
            lifetime: HANG,
            sent: Arc::default(),
        })
    }

    #[tokio::test]
    async fn late_replies_of_a_silent_node_are_awaited_up_to_a_limit() {
        let server = ScriptedServer::start(|_| {
            |_, words: &[String]| match &*words[0] {
                "EVALSHA" => Answer::Nothing,
                _ => greeting(words),
            }
        });
        let (nodes, _) = node_at(server.await).await;
        let (node, task) = (nodes.get(0).unwrap(), impatient_ask());
        for _ in 0..LATE_ASKS_MAX + 50 {
            nodes.at_all(|number, node, reply| Arc::clone(&task).run(number, node, reply)).in_background();
        }
        until("the others have ended", async || Arc::strong_count(&task) == LATE_ASKS_MAX + 1).await;
        assert_eq!(node.late_asks.available_permits(), 0);
    }

    /// Asks a node that does not reply over this connection. Returns how often it was asked to remove the key, once
    /// nothing waits for its reply.
    async fn clean_ups_of_a_late_ask(is_over: bool) -> usize {
        let (asks, clean_ups) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counts = (Arc::clone(&asks), Arc::clone(&clean_ups));
        let server = ScriptedServer::start(|_| {
            move |connection, words: &[String]| match &*words[0] {
                "EVALSHA" if words[3] == NODE => Answer::Text(UNKNOWN_NODE.to_owned()),
                "EVALSHA" if connection == 0 => {
                    counts.0.fetch_add(1, SeqCst);
                    Answer::Nothing
                }
                "EVALSHA" => {
                    counts.1.fetch_add(1, SeqCst);
                    Answer::Text(":1\r\n".to_owned())
                }
                "QUIT" => Answer::EndOfConnection,
                _ => greeting(words),
            }
        });
        let (nodes, mut first) = node_at(server.await).await;
        let (node, task) = (nodes.get(0).unwrap(), impatient_ask());
        nodes.at_all(|number, node, reply| Arc::clone(&task).run(number, node, reply)).in_background();
        until("the attempt continues without the node that was asked", async || {
            asks.load(SeqCst) == 1 && node.late_asks.available_permits() < LATE_ASKS_MAX
        })
        .await;
        if is_over {
            task.sent.end();
        }
        first.connection.query(&redis::cmd("QUIT")).await.unwrap_err();
        until("nothing waits for the reply", async || Arc::strong_count(&task) == 1).await;
        clean_ups.load(SeqCst)
    }

    /// The node may have executed the ask after the clean-up of its attempt.
    #[tokio::test]
    async fn late_ask_is_cleaned_up_although_its_reply_never_comes() {
        assert!(clean_ups_of_a_late_ask(true).await > 0);
    }

    /// The others have granted, and the holder would lose its key at this node.
    #[tokio::test]
    async fn late_ask_of_an_attempt_that_is_not_over_is_not_cleaned_up() {
        assert_eq!(clean_ups_of_a_late_ask(false).await, 0);
    }

    #[tokio::test]
    async fn ask_that_is_sent_again_and_again_has_one_time_limit() {
        let server = ScriptedServer::start(|_| {
            |_, words: &[String]| match &*words[0] {
                "EVALSHA" if words[3] == NODE => Answer::Text(UNKNOWN_NODE.to_owned()),
                "EVALSHA" => Answer::EndOfConnection,
                _ => greeting(words),
            }
        });
        let (nodes, _) = node_at(server.await).await;
        let ask = Arc::into_inner(impatient_ask()).unwrap();
        let task = Arc::new(AskTask { limit: Duration::from_secs(1), ..ask });
        nodes.at_all(|number, node, reply| Arc::clone(&task).run(number, node, reply)).in_background();
        until("the ask has ended", async || Arc::strong_count(&task) == 1).await;
    }

    /// A busy node would get them in a tight loop.
    #[tokio::test]
    async fn clean_ups_that_fail_are_repeated_after_pauses() {
        const TRIES: u32 = 4;
        let tries = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&tries);
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| match &*words[0] {
                "EVALSHA" => {
                    count.fetch_add(1, SeqCst);
                    Answer::Text("-BUSY a script\r\n".to_owned())
                }
                _ => greeting(words),
            }
        });
        let (nodes, _) = node_at(server.await).await;
        let (node, start) = (nodes.get(0).unwrap(), Instant::now());
        let clean_up = clean_up_late(&node, HANG, impatient_ask().attempt.clean_up(), HANG);
        tokio::select! {
            () = clean_up => panic!("it has ended"),
            () = until("it was repeated", async || tries.load(SeqCst) > TRIES as usize) => {}
        }
        assert!(start.elapsed() > RETRY_PAUSE_MIN * TRIES, "{:?}", start.elapsed());
    }

    /// A write-back extends no key.
    #[tokio::test]
    async fn lease_of_a_written_back_grant_counts_from_its_ask() {
        // The clock counts a second for each node that was asked.
        let (clock, asks) = set_clock();
        let mut addresses = Vec::new();
        for counter in [7, 8, 9] {
            let (asks, scripts) = (Arc::clone(&asks), AtomicUsize::default());
            let server = ScriptedServer::start(|_| {
                move |_, words: &[String]| match &*words[0] {
                    "EVALSHA" if words[3] == NODE => Answer::Text(UNKNOWN_NODE.to_owned()),
                    "EVALSHA" if scripts.fetch_add(1, SeqCst) == 0 => {
                        asks.fetch_add(1, SeqCst);
                        Answer::Text(format!(":{counter}\r\n"))
                    }
                    "EVALSHA" => Answer::Text(":10\r\n".to_owned()),
                    _ => greeting(words),
                }
            });
            addresses.push(server.await.address);
        }
        let nodes = nodes_at(Topology::Replicas(addresses));
        let rejoiner = Rejoiner::new(nodes.clone(), HANG, clock.clone(), CancellationToken::new());
        let requests = RequestBuilder { ttl_ms: 1000, keep_ms: 1000 };
        let context = SessionContext { nodes, requests, ttl: HANG, clock, rejoiner };
        let outcome = context.attempt(&Arc::new(keys()), &"{}".into()).await;
        let VoteOutcome::Won(won) = outcome else { panic!("{outcome:?}") };
        assert_eq!((won.token.get(), won.armed_at), (10, BootInstant::from_start(Duration::ZERO)));
    }
}
