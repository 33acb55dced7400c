//! The ZooKeeper queue: `lockkit-zk/src/{acquire, release, sequence, beat, presence}.rs`.
//!
//! Two clients with two claims each on one lock. Writes and checks go through the leader and are answered in the same
//! step, or their answer is lost. Lists and watches are served by the client's own server, which has any earlier state of
//! the leader that is not older than what the client has been answered.
//!
//! * A create whose answer was lost was done before it is looked up, or never: the server refuses what a session sent over a
//!   connection that it has left.
//! * The numbers of the nodes count modulo 8 and wrap after the first one. (With fewer of them four contenders would be
//!   more than half of a round apart, which 2^32 numbers never are.) The code refuses numbers before they wrap; what is
//!   left of that are the queues of other programs.
//! * The server ends a session at any time after the client's own deadline. The client then goes on with a new session;
//!   a claim whose create was not answered is taken along (harder than in the code, where the keeper makes a new claim
//!   for the new session).
//! * An operator deletes any node at any time. When it was the first one, its claim is excused from exclusion until the
//!   next heartbeat of its client ends. That is one step here: what happens between its check and its reads is as if it
//!   happened before the check (then the reads show it) or after the reads (then the next heartbeat does).
//! * The server refuses a request (an ACL). A deletion or a look-up that is refused ends the session, which takes the nodes
//!   along.
//! * A list is answered at once, or late: when the session may be over.
//! * The code also asks the leader before a grant when its last proof of life is old. That is left out: it only makes some
//!   grants later.
//!
//! Left out: other programs' contenders, directories that vanish, the form with a single node.

use crate::{
    few::Few,
    rank::{self, Domain, Rank, Ranked},
};

mod clients;
mod leader;
mod model;
mod property;
mod scenes;

/// A transaction of the store, of which the create's is the token.
type Zxid = Rank;
/// Claims 0 and 1 are of one client, 2 and 3 of the other.
type ClaimNo = u8;

const ZXID: Domain = 0;
const CLIENTS: usize = 2;
const CLAIMS: usize = 4;
/// Numbers of nodes: they wrap after this many.
const NUMBERS: u8 = 8;
const FIRST_NUMBER: u8 = 7;

const ONE_HOLDER: &str = "one holder at a time";
const TOKENS_RISE: &str = "tokens are unique and rise";
const IN_ORDER: &str = "first come, first served";
const NO_ORPHAN: &str = "no orphan at rest";
const IN_THE_END: &str = "in the end everybody is served";

/// The safety steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A node is looked up behind a request that went through the leader.
    LookUpBehindLeader,
    /// A node that is found is the claim's only if it belongs to this session.
    OwnerIsThisSession,
    /// A claim that is given up waits until it knows whether its create was done.
    CancelAwaitsCreate,
    /// A list without the own node grants nothing.
    ListShowsOwnNode,
    /// After a wait the list is read again: the end of the predecessor is no turn.
    ListAfterPredecessor,
    /// A waiter looks for its own node and its predecessor now and then, although nothing has notified it.
    Recheck,
    /// A heartbeat looks for the nodes of holds after its check was answered, which went through the leader.
    HoldsReadBehindCheck,
    /// Numbers are compared as they wrap.
    OrderWraps,
    /// The token is the create's transaction, not the number.
    TokenIsZxid,
    /// A deletion is repeated until it is answered.
    DeleteRepeats,
    /// A client stops to believe in its holds before the server ends its session.
    DeadlineBeforeExpiry,
    /// So it does in a grant whose list was answered before that, and arrives later.
    DeadlineOfGrants,
    /// A deletion that is refused ends the session.
    RefusalEndsSession,
}

/// How often things may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    lost: u8,
    cancels: u8,
    deletes: u8,
    lapses: u8,
    /// Lists that are answered late.
    late: u8,
    /// Requests that the server refuses.
    refusals: u8,
}

/// The model.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    without: Option<Step>,
    claims: u8,
    faults: Faults,
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The directory as the leader has it.
    nodes: Nodes,
    next_number: u8,
    zxid: Zxid,
    clients: [Client; CLIENTS],
    claims: [Claim; CLAIMS],
    token_last: Rank,
    grants: u8,
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

/// A client's first session, or its second one.
type Session = (u8, bool);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The directory as its server has it.
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
    robbed: bool,
    /// The number of the node that is watched.
    predecessor: Option<u8>,
    /// The event of its end was lost.
    deaf: bool,
    token: Rank,
    floor: Rank,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Creating,
    LookingUp,
    Listing,
    /// The list shows nobody before the claim's node, and is on its way.
    Listed,
    Waiting,
    Held,
    /// Released or withdrawn.
    Deleting,
    Ended,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A caller asks for the lock.
    Start(ClaimNo),
    /// The create is done and answered.
    Create(ClaimNo),
    /// It is not answered; done or not.
    LoseCreate(ClaimNo, bool),
    /// The claim's node is looked for.
    LookUp(ClaimNo),
    /// The list is read.
    List(ClaimNo),
    /// The list is read, and its answer is late.
    ListUnheard(ClaimNo),
    /// That answer arrives.
    Hear(ClaimNo),
    /// The server refuses the claim's request.
    Refuse(ClaimNo),
    /// A waiter looks for its own node and its predecessor.
    Recheck(ClaimNo),
    /// The watch tells that the predecessor is gone.
    Told(ClaimNo),
    /// It does not.
    LoseEvent(ClaimNo),
    /// The own node is deleted.
    Delete(ClaimNo),
    /// The answer is lost; done or not.
    LoseDelete(ClaimNo, bool),
    /// The caller leaves.
    GiveUp(ClaimNo),
    /// The guard is dropped.
    Release(ClaimNo),
    /// A client's heartbeat ends: its holds are where the client's server shows them, or missed.
    Beat(usize),
    /// The client's server hears what the leader has done.
    CatchUp(usize),
    /// The deadline passes; the client goes on in a new session.
    Lapse(usize),
    /// The server ends the first session.
    Expire(usize),
    /// An operator deletes a node.
    Break(usize),
}

impl ZooKeeper {
    fn has(&self, step: Step) -> bool {
        self.without != Some(step)
    }

    /// Whether one number comes before another.
    fn is_before(&self, one: u8, other: u8) -> bool {
        match self.has(Step::OrderWraps) {
            true => one != other && (other + NUMBERS - one) % NUMBERS < NUMBERS / 2,
            false => one < other,
        }
    }
}

impl Ranked for State {
    fn each_rank(&mut self, visit: &mut dyn FnMut(Domain, &mut Rank)) {
        visit(ZXID, &mut self.zxid);
        visit(ZXID, &mut self.token_last);
        let views = self.clients.iter_mut().map(|client| &mut client.view);
        for nodes in std::iter::once(&mut self.nodes).chain(views) {
            nodes.iter_mut().for_each(|node| visit(ZXID, &mut node.czxid));
        }
        for claim in &mut self.claims {
            claim.own.iter_mut().for_each(|own| visit(ZXID, &mut own.czxid));
            visit(ZXID, &mut claim.token);
            visit(ZXID, &mut claim.floor);
        }
    }
}
