//! The etcd queue with modes of [decision 0032](../../../docs/decisions/0032-modes.md). Not implemented yet.
//!
//! Two clients with a lease each make two claims each on one lock. Each claim chooses its mode when it starts. The rule
//! that admits claims is that of [`modes`].
//!
//! * An enqueue is executed, and its reply arrives later: the revision, and whether the claim is admitted there.
//! * A claim that ends, a hold or a waiter, deletes its key and reads the queue behind it in one transaction. A second
//!   one writes a handoff to each claim that the deletion has admitted. Anything may happen in between.
//! * The reply to an enqueue or to a deletion is lost, and the request is repeated. A handoff is lost. A re-check that
//!   changes nothing is left out; any other one is one action.
//! * The end of a lease deletes all of its keys at one revision, after the client's own deadline. An operator deletes
//!   any key.
//!
//! In the scenes "handoffs alone" no waiter re-checks: every claim is granted by its enqueue or by a handoff.
//!
//! Left out, because the model of the queue has them: late copies of requests and epochs, keys that are reused, grants
//! that are answered before a deadline and arrive later, other programs, refusals, tries. Also left out are reads of a
//! part of the queue: here every read is of all keys.

use crate::{
    frame::{CLAIMS, ClaimNo, EVENTUALLY, Faults, steps},
    modes::{self, IN_ORDER, LIMITS, Mode, READ_WRITE},
    rank::{self, Domain, Rank, Ranked},
    scope::Scope,
};

mod claim;
mod model;
mod property;
mod scenes;
mod server;

pub use self::model::Action;

/// A revision of the store; 0 for none. Create revisions and those that become tokens are never compared with each
/// other.
type Revision = Rank;

const CREATED: Domain = 0;
const TOKEN: Domain = 1;

const CLIENTS: usize = 2;

const TOKENS_RISE: &str = "tokens rise between claims that exclude each other";

/// Waiters do not re-check.
const HANDOFFS_ALONE: &str = "handoffs alone";

steps! {
    /// A claim heeds the limits of the claims before it as well as its own.
    HeedsLimitsBefore: LIMITS in "2 + 1, handoffs alone",
    /// It counts the claims before it only, not all.
    CountsThoseBefore: EVENTUALLY in "2 + 1",
    /// It counts those that wait as well: a shared claim does not join the shared holders past an exclusive waiter.
    CountsWaiters: IN_ORDER in "2 + 1, read-write, handoffs alone",
    /// It counts at the revision of its enqueue or later, not before.
    CountsWithEnqueue: LIMITS in "2 + 1, handoffs alone",
    /// A read of the queue grants only if it finds the claim's own key.
    ReadFindsOwnKey: LIMITS in "2 + 1, read-write, operator",
    /// A deletion hands off to all claims that it admits, not only to the first.
    HandsOffToAll: EVENTUALLY in "2 + 1, read-write, handoffs alone",
    /// The queue is read in the transaction that deletes, not before it.
    QueueReadWithDeletion: EVENTUALLY in "2 + 1, read-write, handoffs alone",
    /// The end of a shared hold hands off as well.
    SharedHoldHandsOff: EVENTUALLY in "2 + 1, read-write, handoffs alone",
    /// So does the withdrawal of a waiter: without an exclusive waiter between them, shared claims hold together.
    WithdrawalHandsOff: EVENTUALLY in "2 + 1, read-write, handoffs alone, cancel",
    /// A repeated deletion that finds no key hands off to all admitted claims: what the first one admitted is unknown.
    RepetitionHandsOff: EVENTUALLY in "2 + 1, read-write, handoffs alone, lost",
    /// A handoff counts only for the create revision that it names.
    HandoffNamesKey: LIMITS in "2 + 1, read-write, lost, operator",
    /// A handoff's token is the revision at which its claim was admitted, not that of the handoff.
    HandoffNamesAdmission: TOKENS_RISE in "2 + 1, read-write, operator",
    /// A waiter reads the queue now and then, also without a handoff.
    Recheck: EVENTUALLY in "2 + 1, read-write, lost",
    /// A client stops relying on its holds before the server ends its lease.
    DeadlineBeforeExpiry: LIMITS in "2 + 1, read-write, handoffs alone, lease ends",
}

/// The model.
pub type EtcdModes = Scope<Step>;

/// The state of the server, the clients and everything that is on its way between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    revision: Revision,
    created_last: Revision,
    /// The queue: the create revision of each claim's key; 0 for none.
    keys: [Revision; CLAIMS],
    /// The handoff on its way to each claim.
    handoffs: [Option<Handoff>; CLAIMS],
    clients: [Client; CLIENTS],
    claims: [Claim; CLAIMS],
    faults: Faults,
    grants: u8,
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Handoff {
    /// The create revision of the key that was admitted.
    created: Revision,
    token: Revision,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The client has ended its session; the lease may still exist.
    session_ended: bool,
    lease_gone: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Enqueueing,
    /// Without `CountsWithEnqueue`: the queue was read, and the claim would be admitted; it is not enqueued yet.
    Counted,
    Waiting,
    Held,
    /// The hold ends, or the waiter is withdrawn: its key must be deleted.
    Leaving,
    /// Without `QueueReadWithDeletion`: the queue was read, and the key must be deleted.
    Deleting,
    /// The key is deleted; the handoffs are not written yet.
    HandingOff,
    Ended,
}

/// A claim. After its end, what later tokens are compared with is kept as long as an earlier claim may be granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    mode: Mode,
    /// 0 until a reply has shown it.
    own: Revision,
    /// Of its grant; 0 for none.
    token: Revision,
    /// The reply to its enqueue, on its way.
    reply: Option<EnqueueReply>,
    /// A handoff that came before the reply.
    early_handoff: Option<Handoff>,
    given_up: bool,
    /// An operator deleted its key when it was admitted.
    evicted: bool,
    /// A request of it may have been executed although its reply was lost.
    in_doubt: bool,
    /// The keys that it must hand off to, by claim, and the revision at which they were admitted.
    admits: [Revision; CLAIMS],
    admitted_at: Revision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EnqueueReply {
    revision: Revision,
    own: Revision,
    is_admitted: bool,
}

impl EtcdModes {
    fn waiters_recheck(&self) -> bool {
        !self.is(HANDOFFS_ALONE) && self.has(Step::Recheck)
    }
}

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut impl FnMut(Domain, &mut Rank)) {
        visit(TOKEN, &mut self.revision);
        self.keys.iter_mut().for_each(|created| visit(CREATED, created));
        let early = self.claims.iter_mut().map(|claim| &mut claim.early_handoff);
        for handoff in self.handoffs.iter_mut().chain(early).flatten() {
            visit(CREATED, &mut handoff.created);
            visit(TOKEN, &mut handoff.token);
        }
        for claim in &mut self.claims {
            visit(CREATED, &mut claim.own);
            claim.admits.iter_mut().for_each(|created| visit(CREATED, created));
            visit(TOKEN, &mut claim.token);
            visit(TOKEN, &mut claim.admitted_at);
            if let Some(reply) = &mut claim.reply {
                visit(CREATED, &mut reply.own);
                visit(TOKEN, &mut reply.revision);
            }
        }
    }
}
