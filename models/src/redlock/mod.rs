//! Redlock with fencing tokens: `lockkit-redis/src/redlock/`, independent masters.
//!
//! Two clients with two claims each, one after the other, on three nodes. Nodes are alike: states that differ by their
//! order are one state.
//!
//! * A request is executed at any time after it was sent, or never, as long as its claim goes on; its answer comes with
//!   it. A claim goes on as soon as the answers that it has are enough, or when it is tired of waiting; the other requests
//!   are on their way still. A claim may give up at any time, and so may a holder.
//! * A connection breaks: the request that was sent over it is executed at any later time, also after its claim's end, and
//!   is sent again over another one.
//! * Clocks are arbitrary: a claim proposes what it likes as its time.
//! * A key of a claim that has ended goes at any time: by its ttl, by a clean-up or by a release. Releases are repeated,
//!   and overtake each other and the client's next claim: one is executed at any node at any time, as often as it likes.
//! * A holder's beat brings the key back to any node where nobody has it (harder than in the code, which does that only
//!   while a majority has it still).
//! * A key of a living claim may go early; exclusion is then not promised any more (tokens still are).
//! * A node may restart empty. It counts again after a ttl, in which every claim that relied on it has ended or has been
//!   renewed without it, and with the highest counter that the others had after that. Several clients may see to it.
//!
//! * What ends a claim is not sent to a node that has refused its ask, unless an earlier copy of that may be executed later.
//!
//! What is left out because it can do nothing: any other request that a node refuses is as one that is not executed, and a
//! release that can change nothing any more is forgotten. Left out altogether: five nodes, pub/sub (a hint), counters that end
//! when nobody has used them for long.

use crate::few::Few;

mod clients;
mod model;
mod nodes;
mod property;
mod scenes;

const NODES: usize = 3;
const MAJORITY: usize = 2;
const CLIENTS: usize = 2;
const CLAIMS: usize = 4;

const ONE_HOLDER: &str = "one holder at a time, while no key goes early";
const UNIQUE: &str = "tokens are unique";
const RISING: &str = "a token is above those of all grants before its claim began";
const NO_REVIVAL: &str = "a released key does not come back";
const IN_THE_END: &str = "in the end an emptied node counts again, where most others do";
const NO_RESIDUE: &str = "no claim leaves anything where it is not taken back";

/// The safety steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Only a value that a majority answered alike is a token without a write-back.
    FastPathNeedsOneValue,
    /// A write-back counts only where the key is the claim's.
    WriteBackChecksOwner,
    /// And where the counter is not above the token.
    WriteBackChecksCounter,
    /// Restore only where the counter is not above the token.
    RestoreChecksCounter,
    /// The release of a grant raises the counter above its token, whoever owns the key.
    ReleaseRaisesCounter,
    /// A refused ask is taken back all the same where an earlier copy of it may be executed later.
    DoubtIsTakenBack,
    /// A node without its marker answers nothing that counts.
    MarkerIsTested,
    /// The marker comes back only after a ttl.
    MarkerWaits,
    /// A holder that was renewed without a lost node needs it no more: it may hold for ever.
    RenewMakesUp,
    /// A holder's beat makes up for a lost node only where a majority still had the key.
    RenewNeedsMajority,
    /// The marker comes back only with a counter that is not below those of the others.
    MarkerRaisesCounter,
    /// And those others are a majority.
    MarkerNeedsMajority,
    /// It replaces only the note that was there during the wait: a node that was emptied again has another one.
    MarkerNamesItsNote,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Redlock {
    without: Option<Step>,
    /// How many claims each client makes, and the times that they may propose.
    claims: [u8; CLIENTS],
    proposals: &'static [u8],
    /// The counters that the nodes begin with: other locks, and claims that failed, have raised them.
    counters: [u8; NODES],
    faults: Faults,
}

/// How often things may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    /// Connections that break under a request.
    lost: u8,
    /// Keys that go early.
    early: u8,
    /// Nodes that restart empty.
    restarts: u8,
}

/// A claim: its client and whether it is the first or the second one of it.
type ClaimNo = u8;

/// Some of the claims, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Claims(u8);

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    /// The tokens of grants, as long as anything is compared with them; and the highest one ever.
    tokens: [u8; CLAIMS],
    token_last: u8,
    /// Grants that have ended, as long as their release can do anything.
    releases: Claims,
    faults: Faults,
    gone_early: bool,
    broken: Option<&'static str>,
}

/// A node, with how far each client is with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    key: Option<ClaimNo>,
    counter: u8,
    unmarked: bool,
    /// Claims that may still rely on what the node had before its restart.
    waits_for: Claims,
    /// What somebody who brings the node back has read from the others, and not written yet.
    learned: Option<u8>,
    /// Claims whose release ran here, as long as a restore of theirs may come.
    released: Claims,
    asked: [Asked; CLIENTS],
    late: Few<Request, 2>,
}

/// How far the present claim of a client is with a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Asked {
    #[default]
    Nothing,
    /// The ask is on its way.
    Ask,
    /// It is on its way again: the connection of an earlier copy has broken.
    AskAgain,
    /// The node has done nothing, and will do nothing.
    Refused,
    /// The key is the claim's, with this counter.
    Owned(u8),
    /// The write-back is on its way.
    WriteBack,
    /// It was done.
    Written,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: ClaimNo,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Ask { proposal: u8 },
    WriteBack { token: u8 },
    Restore { token: u8 },
}

impl Default for What {
    fn default() -> Self {
        Self::Ask { proposal: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    begun: u8,
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

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A client makes a claim and proposes a time.
    Begin(usize, u8),
    /// A node executes what the client's claim has asked it, and answers.
    Execute(usize, usize),
    /// The connection breaks; what was sent over it is still on its way.
    Break(usize, usize),
    /// Such a request is executed.
    ExecuteLate(usize, usize),
    /// A majority has answered differently, and the rest is not waited for: the claim writes back.
    WriteBack(usize),
    /// The claim gives up, or its deadline passes.
    GiveUp(usize),
    /// The holder's beat.
    Renew(usize),
    /// The holder's beat brings the key back to a node.
    Restore(usize, usize),
    /// The guard is dropped, or its deadline passes.
    Release(usize),
    /// The release of a claim is executed at a node.
    ExecuteRelease(usize, ClaimNo),
    /// A key goes.
    Expire(usize),
    /// A node restarts empty.
    Restart(usize),
    /// The counters of the others are read for a node that was emptied.
    Learn(usize),
    /// Its marker is written again.
    Mark(usize),
}

impl Redlock {
    fn has(&self, step: Step) -> bool {
        self.without != Some(step)
    }
}

impl Claims {
    fn has(self, claim: ClaimNo) -> bool {
        self.0 & 1 << claim != 0
    }

    fn add(&mut self, claim: ClaimNo) {
        self.0 |= 1 << claim;
    }

    fn remove(&mut self, claim: ClaimNo) {
        self.0 &= !(1 << claim);
    }

    fn iter(self) -> impl Iterator<Item = ClaimNo> {
        (0..CLAIMS as ClaimNo).filter(move |claim| self.has(*claim))
    }
}
