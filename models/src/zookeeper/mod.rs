//! The ZooKeeper queue: `lockkit-zk/src/`.
//!
//! Two clients make two claims each on one lock. Writes and checks go through the leader and are answered in the same
//! action, or their answer is lost. Lists and watches are served by the client's own server. It has some earlier state
//! of the leader, which is not older than what the client was last answered.
//!
//! * A create whose answer was lost was executed before the look-up, or never. (A server may execute it later. The code
//!   deletes its node then, see decision 0048; that is left out.)
//! * The sequence numbers of nodes count modulo 8 and wrap after the first one. (With a smaller modulus four contenders
//!   could be more than half of a cycle apart, which 2^32 numbers never are.) The code refuses numbers before they
//!   wrap; what remains of the case are the queues of other programs.
//! * The server ends a session at any time after the client's own deadline. The client then continues with a new
//!   session. A claim whose create was not answered continues there (harder than in the code, where the keeper makes a
//!   new claim).
//! * An operator deletes any node at any time. If it was the first one, its claim is exempt from exclusion until the
//!   next heartbeat of its client ends. That heartbeat is one action: a deletion between its check and its reads acts
//!   as one before the check (then the reads show it) or as one after the reads (then the next heartbeat shows it).
//! * The server refuses a request (an ACL). A refused deletion or look-up ends the session, which removes the nodes.
//! * A list is answered at once, or late: the session may have ended by then.
//! * The code also asks the leader before a grant when its last liveness proof is old. That is left out: it only delays
//!   some grants.
//!
//! Left out: other programs' contenders, directories that vanish, the form with a single node.

use crate::{
    few::Few,
    frame::{
        CLAIMS, ClaimNo, EVENTUALLY, Faults, IN_ORDER, NO_ORPHAN, ONE_HOLDER, TOKENS_RISE, Tokens, steps,
    },
    rank::{self, Domain, Rank, Ranked},
    scope::Scope,
};

mod claim;
mod leader;
mod model;
mod property;
mod scenes;

pub use self::model::Action;

/// A transaction of the store. That of a create is the token.
type Zxid = Rank;

const ZXID: Domain = 0;
const CLIENTS: usize = 2;
/// Sequence numbers wrap after this many.
const NUMBERS: u8 = 8;
const FIRST_NUMBER: u8 = 7;

steps! {
    /// A node is looked up after a request that went through the leader.
    LookUpAfterLeader: NO_ORPHAN in "2 + 1, lost",
    /// A node that is found belongs to the claim only if this session owns it.
    OwnerIsThisSession: ONE_HOLDER in "2 + 1, lost, session ends",
    /// A claim that is given up waits until it knows whether its create was executed.
    CancelAwaitsCreate: NO_ORPHAN in "2 + 1, lost, cancel",
    /// A list without the claim's own node grants nothing.
    ListShowsOwnNode: ONE_HOLDER in "2 + 1, operator",
    /// After the end of the predecessor the list is read again; only the list grants.
    ListAfterPredecessor: ONE_HOLDER in "2 + 1, cancel",
    /// A waiter checks its own node and its predecessor now and then, also without a notification.
    Recheck: EVENTUALLY in "2 + 1, lost",
    /// A heartbeat reads the nodes of holds after its check was answered, which went through the leader.
    HoldsReadAfterCheck: ONE_HOLDER in "2 + 1, operator",
    /// Sequence numbers are compared modulo their wrap.
    OrderWraps: ONE_HOLDER in "2 + 1",
    /// The token is the create's transaction, not the sequence number.
    TokenIsZxid: TOKENS_RISE in "2 + 1",
    /// A deletion is repeated until it is answered.
    DeleteRepeats: NO_ORPHAN in "2 + 1, lost",
    /// A client stops relying on its holds before the server ends its session.
    DeadlineBeforeExpiry: ONE_HOLDER in "2 + 1, session ends",
    /// The deadline also covers a grant whose list was answered before it and arrives later.
    DeadlineOfLateGrants: ONE_HOLDER in "2 + 1, session ends, late list",
    /// A refused deletion ends the session.
    RefusalEndsSession: NO_ORPHAN in "2 + 1, refused",
}

/// The model.
pub type ZooKeeper = Scope<Step>;

/// The state of the leader, the clients and their servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The directory as the leader has it.
    nodes: Nodes,
    next_number: u8,
    zxid: Zxid,
    clients: [Client; CLIENTS],
    claims: [Claim; CLAIMS],
    tokens: Tokens,
    faults: Faults,
    broken: Option<&'static str>,
}

type Nodes = Few<Node, 5>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    claim: ClaimNo,
    number: u8,
    czxid: Zxid,
    session: Session,
}

/// A client, and whether it is that client's second session.
type Session = (usize, bool);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The directory as the client's server has it.
    view: Nodes,
    second_session: bool,
    first_expired: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    own: Option<Node>,
    given_up: bool,
    /// An operator deleted its node when that was the first one.
    evicted: bool,
    /// The number of the node that is watched.
    predecessor: Option<u8>,
    /// The event of the predecessor's end was lost.
    event_lost: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Creating,
    LookingUp,
    Listing,
    /// The list shows no node before the claim's, and is on its way.
    Listed,
    Waiting,
    Held,
    /// Released or withdrawn.
    Deleting,
    Ended,
}

impl ZooKeeper {
    /// Whether one sequence number comes before another.
    fn is_before(&self, one: u8, other: u8) -> bool {
        match self.has(Step::OrderWraps) {
            true => one != other && (other + NUMBERS - one) % NUMBERS < NUMBERS / 2,
            false => one < other,
        }
    }
}

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut impl FnMut(Domain, &mut Rank)) {
        visit(ZXID, &mut self.zxid);
        self.tokens.each_rank(ZXID, visit);
        let views = self.clients.iter_mut().map(|client| &mut client.view);
        for nodes in std::iter::once(&mut self.nodes).chain(views) {
            nodes.iter_mut().for_each(|node| visit(ZXID, &mut node.czxid));
        }
        for claim in &mut self.claims {
            claim.own.iter_mut().for_each(|own| visit(ZXID, &mut own.czxid));
        }
    }
}
