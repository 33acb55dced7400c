//! Redlock with fencing tokens: `lockkit-redis/src/redlock/`, independent masters.
//!
//! Two clients make two claims each, one after the other, on three nodes. Nodes are alike: states that differ only by
//! the order of the nodes are one state.
//!
//! * A request is executed at any time after it was sent, or never, while its claim is under way; its answer comes with
//!   it. A claim proceeds as soon as it has enough answers or stops waiting for more; its other requests are still on
//!   their way. A claim may give up at any time, and so may a holder.
//! * A connection breaks: the request that was sent over it is executed at any later time, also after the end of its
//!   claim, and is sent again over another connection.
//! * Clocks are arbitrary: a claim proposes any time.
//! * The key of a claim that has ended is deleted at any time: by its ttl, a clean-up or a release. Releases are
//!   repeated and may overtake each other and the client's next claim: one is executed at any node, at any time, any
//!   number of times.
//! * A holder's heartbeat restores the key at any node that has none (harder than in the code, which does so only while
//!   a majority still has it).
//! * The key of a live claim may expire early. Exclusion is no longer promised then; tokens still are.
//! * A node may restart empty. It counts again after a ttl, and with the highest counter that the others had after
//!   that. In this time every claim that relied on the node has ended or was renewed without it. Several clients may do
//!   this at once.
//! * A claim that ends sends nothing to a node that has refused its ask, unless an earlier copy of the ask may be
//!   executed later.
//!
//! Left out because they change nothing: a request that a node refuses otherwise, and a release that has no effect any
//! more. Left out altogether: five nodes, pub/sub (a hint), counters that expire after a long time without use.

use crate::{
    few::Few,
    frame::{CLAIMS, ClaimNo, Faults, steps},
    scope::Scope,
};

mod claim;
mod model;
mod nodes;
mod scenes;

pub use self::model::Action;

const NODES: usize = 3;
const MAJORITY: usize = 2;
const CLIENTS: usize = 2;

const ONE_HOLDER: &str = "one holder at a time, while no key expires early";
const UNIQUE: &str = "tokens are unique";
const RISING: &str = "a token is above those of all grants before its claim began";
const NO_REVIVAL: &str = "a released key does not come back";
const EVENTUALLY: &str = "eventually an emptied node counts again, while a majority counts";
const NO_RESIDUE: &str = "no claim leaves a key where it sends no release";

/// The nodes begin with different counters: other locks, and claims that failed, have raised them.
const COUNTERS_APART: &str = "counters apart";
/// Claims may propose different times.
const CLOCKS_APART: &str = "clocks apart";

steps! {
    /// Only a value that a majority answered alike is a token without a write-back.
    FastPathNeedsOneValue: UNIQUE in "2 + 1, early",
    /// A write-back counts only where the key is the claim's.
    WriteBackChecksOwner: UNIQUE in "2 + 1, early",
    /// A write-back counts only where the counter is not above the token.
    WriteBackChecksCounter: UNIQUE in "2 + 1, lost, early",
    /// A restore counts only where the counter is not above the token.
    RestoreChecksCounter: NO_REVIVAL in "1 + 1, lost",
    /// The release of a grant for which a restore was sent raises the counter above its token, no matter whose key it
    /// finds.
    ReleaseRaisesCounter: NO_REVIVAL in "1 + 1, lost",
    /// A refused ask is withdrawn nevertheless if an earlier copy of it may be executed later.
    UncertainAskWithdrawn: NO_RESIDUE in "1 + 1, lost",
    /// The answers of a node without its marker do not count.
    MarkerIsTested: ONE_HOLDER in "1 + 1, restart",
    /// The marker is written again only after a ttl.
    MarkerWaits: ONE_HOLDER in "1 + 1, restart",
    /// A holder that was renewed without an emptied node no longer relies on it: it may hold for ever.
    RenewalDropsEmptiedNode: EVENTUALLY in "1 + 1, restart",
    /// A holder's heartbeat does so only if a majority still had the key.
    RenewalNeedsMajority: ONE_HOLDER in "1 + 1, restart",
    /// The marker is written again only with a counter that is not below those of the others.
    MarkerRaisesCounter: UNIQUE in "1 + 1, restart",
    /// Those others are a majority.
    MarkerNeedsMajority: UNIQUE in "1 + 1, two restarts",
    /// The marker replaces only the note that was there during the wait: a node that was emptied again has another one.
    MarkerNamesItsNote: ONE_HOLDER in "1 + 1, two restarts",
}

/// The model.
pub type Redlock = Scope<Step>;

/// A set of claims, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ClaimSet(u8);

/// The state of the nodes and the clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    /// The tokens of grants, while any other token is compared with them; and the highest one ever.
    tokens: [u8; CLAIMS],
    token_last: u8,
    /// Grants that have ended, while their release can have an effect.
    releases: ClaimSet,
    /// Claims that have sent a restore to any node.
    restored: ClaimSet,
    faults: Faults,
    expired_early: bool,
    broken: Option<&'static str>,
}

/// A node, with the progress of each client there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    key: Option<ClaimNo>,
    counter: u8,
    unmarked: bool,
    /// Claims that may still rely on what the node had before its restart.
    waits_for: ClaimSet,
    /// The counter that a client has read from the others to bring the node back, and not written yet.
    learned: Option<u8>,
    /// Claims that were released here, while a restore of theirs may arrive.
    released: ClaimSet,
    progress: [Progress; CLIENTS],
    late: Few<Request, 2>,
}

/// The progress of a client's current claim at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Progress {
    #[default]
    Nothing,
    /// The ask is on its way.
    Ask,
    /// The ask is on its way again: the connection of an earlier copy has broken.
    AskAgain,
    /// The node has refused the ask and does nothing more for the claim.
    Refused,
    /// The key is the claim's, with this counter.
    Owned(u8),
    /// The write-back is on its way.
    WriteBack,
    /// The write-back was done.
    Written,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: ClaimNo,
    kind: RequestKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum RequestKind {
    Ask { proposal: u8 },
    WriteBack { token: u8 },
    Restore { token: u8 },
}

impl Default for RequestKind {
    fn default() -> Self {
        Self::Ask { proposal: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// How many claims it has made.
    started: u8,
    phase: Phase,
    proposal: u8,
    token: u8,
    /// The highest token of the grants before the claim began.
    floor: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asking,
    WritingBack,
    Held,
}

impl ClaimSet {
    fn has(self, claim: ClaimNo) -> bool {
        self.0 & 1 << claim.index() != 0
    }

    fn add(&mut self, claim: ClaimNo) {
        self.0 |= 1 << claim.index();
    }

    fn remove(&mut self, claim: ClaimNo) {
        self.0 &= !(1 << claim.index());
    }

    fn iter(self) -> impl Iterator<Item = ClaimNo> {
        ClaimNo::all().filter(move |claim| self.has(*claim))
    }
}
