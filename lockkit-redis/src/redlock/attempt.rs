//! One attempt at a lock: ask all nodes, write back where it takes that, or clean up everywhere.
//!
//! Failure cases:
//!
//! * A node's answer is lost, or late: the others decide. The request is still owned by its task: when it turns out that
//!   the node has given the lock to an attempt that is over, that is taken back.
//! * The connection breaks under a request: it is sent again while its time lasts; the node finds what it has done.
//! * Half of the nodes say yes: everything is taken back at once, at all nodes, those that said no or nothing too.
//! * The nodes answer too slowly: what they gave is worth nothing once the deadline is past, which counts from before the
//!   first request.
//! * Nodes change their addresses meanwhile: one may have answered at two of them, so that the attempt is worth nothing.
//! * A node cannot be asked at all: nothing is taken back there, so that one that is away for long costs nothing.
//! * An attempt's requests lie about for long: each attempt has an id of its own, and can touch no other.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkit_core::{BootInstant, Clock, FencingToken, Metadata, backend::ClaimId};
use tokio::time::Instant;

use super::{
    calls::{Bid, Request, Terms, Word, word},
    ending::{Ending, Repeats, Trace, end_late},
    node::Node,
    nodes::{Nodes, Tell},
    rejoin::Rejoining,
    tally::{Answer, Asked, Tally},
    validity,
};
use crate::{error::Fault, keys::LockKeys};

/// A connection that has brought no answer for so long will bring none.
const LATE_ANSWER_MAX: Duration = Duration::from_secs(600);

/// What all attempts of a session have in common.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) nodes: Nodes,
    pub(super) terms: Terms,
    pub(super) ttl: Duration,
    pub(super) clock: Clock,
    pub(super) rejoining: Rejoining,
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Won(Won),
    /// Others are there; nothing is left.
    Contended,
    /// Too few nodes have answered, or too late; nothing is left where they can be reached.
    Failed(Fault),
}

/// A majority.
#[derive(Clone, Debug)]
pub(super) struct Won {
    pub(super) bid: Bid,
    pub(super) token: FencingToken,
    pub(super) armed_at: BootInstant,
    asks: Arc<Trace>,
}

impl Won {
    /// Ends it at all nodes.
    pub(super) fn end(&self, table: &Table) -> Ending {
        let release = table.terms.release(&self.bid, self.token);
        Ending::begin(&table.nodes, release, &self.asks, Repeats::Always, table.ttl)
    }

    /// Whether a node may be asked to bring the lock back: not once the end of the grant has begun, which must reach every
    /// node that this was sent to.
    pub(super) fn may_restore_at(&self, node: usize) -> bool {
        self.asks.touch(node);
        !self.asks.over.load(SeqCst)
    }
}

impl Table {
    /// Tries once.
    pub(super) async fn attempt(&self, keys: &LockKeys, metadata: &Metadata) -> Outcome {
        let bid = Bid { id: ClaimId::random(), keys: keys.clone() };
        let asks = Arc::new(Trace::of(self.nodes.count()));
        let armed_at = self.clock.now();
        let moves = self.nodes.members.moves();
        let asked = self.ask(&bid, metadata, &asks).await;
        let answered = match asked.asked(true) {
            Asked::Alike(token) => Ok(token),
            Asked::Owned(token) => self.write_back(&bid, &asked, token).await,
            Asked::Open | Asked::Failed => Err(asked),
        };
        let failed = match answered {
            Ok(_) if self.nodes.members.moves() != moves => Outcome::Failed(self.nodes.moved()),
            Ok(token) if self.clock.now() < validity::deadline(armed_at, self.ttl) => {
                return Outcome::Won(Won { bid, token, armed_at, asks });
            }
            Ok(_) => Outcome::Failed(self.nodes.too_slow()),
            Err(tally) if tally.is_contended() => Outcome::Contended,
            Err(tally) => Outcome::Failed(self.nodes.no_majority(tally.faults())),
        };
        let ending = Ending::begin(&self.nodes, self.terms.clean_up(&bid), &asks, Repeats::Bounded, self.ttl);
        match (failed, ending.confirmed().await) {
            // Others are there, but something of ours may be too.
            (Outcome::Contended, Err(fault)) => Outcome::Failed(fault),
            (failed, _) => failed,
        }
    }

    /// Asks all nodes.
    async fn ask(&self, bid: &Bid, metadata: &Metadata, asks: &Arc<Trace>) -> Tally {
        let asking = Arc::new(Asking {
            ask: self.terms.ask(bid, wall_clock_us(), metadata),
            clean_up: self.terms.clean_up(bid),
            limit: self.nodes.limit,
            lifetime: self.ttl,
            asks: Arc::clone(asks),
        });
        let mut tally = Tally::new(self.nodes.count());
        let mut round = self.nodes.at_all(|number, node, tell| Arc::clone(&asking).at(number, node, tell));
        while match tally.asked(false) {
            Asked::Open => true,
            // A node that is away fails sooner than others answer: they say why there is no majority.
            Asked::Failed => !tally.is_told(),
            Asked::Alike(_) | Asked::Owned(_) => false,
        } {
            let Some((node, answer)) = round.next(tally.is_owned_by_majority()).await else { break };
            if matches!(answer, Ok(Word::Empty)) {
                self.rejoining.found_empty(node);
            }
            tally.note(node, answer);
        }
        tally
    }

    /// Makes the token the counter of the nodes that are owned; a majority must do so.
    async fn write_back(&self, bid: &Bid, asked: &Tally, token: FencingToken) -> Result<FencingToken, Tally> {
        let (call, limit) = (Arc::new(self.terms.write_back(bid, token)), self.nodes.limit);
        let mut tally = Tally::of_others(asked);
        let mut round = self.nodes.at(asked.owned(), |_, node, tell: Tell<Answer>| {
            let call = Arc::clone(&call);
            async move { tell.tell(node.run(limit, &call).await.and_then(word)) }
        });
        while !tally.is_written() {
            let Some((node, answer)) = round.next(false).await else { break };
            tally.note(node, answer);
        }
        if tally.is_owned_by_majority() { Ok(token) } else { Err(tally) }
    }
}

/// The question to each node, owned until it is answered.
struct Asking {
    ask: Request,
    clean_up: Request,
    limit: Duration,
    lifetime: Duration,
    asks: Arc<Trace>,
}

impl Asking {
    async fn at(self: Arc<Self>, number: usize, node: Arc<Node>, tell: Tell<Answer>) {
        // Also when this ends early.
        let settled = self.asks.settles(number);
        let deadline = Instant::now() + self.limit;
        let may_run_later = loop {
            let link = match node.link(deadline).await {
                Ok(link) => link,
                Err(fault) => return tell.tell(Err(fault)),
            };
            let executing = node.ask(&link, &self.ask);
            tokio::pin!(executing);
            let answer = tokio::time::timeout_at(deadline, &mut executing).await;
            let answer = answer.map(|answer| answer.and_then(word));
            match &answer {
                Ok(Ok(Word::Busy | Word::Empty)) => self.asks.refuse(number),
                Ok(Err(fault)) if !fault.leaves_doubt() && !fault.may_be_of_a_script() => {}
                _ => self.asks.touch(number),
            }
            match answer {
                // It broke; the node may know the attempt already.
                Ok(Err(fault)) if fault.leaves_doubt() && !self.is_over() => {}
                Ok(answer) => {
                    let may_run_later = answer.as_ref().is_err_and(Fault::leaves_doubt);
                    tell.tell(answer);
                    drop(settled);
                    break may_run_later;
                }
                Err(_) => {
                    link.give_up();
                    tell.tell(Err(Fault::no_reply()));
                    drop(settled);
                    // Nobody waits any more, but the node may still do what it was asked for.
                    let late = tokio::time::timeout(LATE_ANSWER_MAX, executing).await;
                    break !matches!(late, Ok(Err(fault)) if !fault.leaves_doubt());
                }
            }
        };
        // Whoever ends the attempt later than this sends a clean-up that finds what is there.
        if may_run_later && self.is_over() {
            end_late(&node, self.limit, self.clean_up.clone(), self.lifetime).await;
        }
    }

    fn is_over(&self) -> bool {
        self.asks.over.load(SeqCst)
    }
}

/// What a client proposes for a counter.
fn wall_clock_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
