//! The etcd queue: `lockkit-etcd/src/`.
//!
//! Two clients with a lease each make two claims each on one lock. The claims of a client run concurrently or one after
//! the other; in the second case the later claim may reuse the key of the earlier one.
//!
//! * An enqueue is executed and answered in two actions, the deletion of a key is sent and executed in two, with
//!   anything in between. When a reply is lost, its sender stops waiting; the request was executed already or will be
//!   at any time.
//! * Only a copy of an enqueue that follows an unanswered one compares that its key is absent. A late one may so put an
//!   existing key again, which changes nothing that is modelled.
//! * Handoffs arrive in order over the watch; any of them may be lost. An event of the predecessor's end only makes a
//!   waiter re-check earlier, so such events appear only where that step is removed. A re-check that finds both keys
//!   changes nothing; any other one is a single action with the read of the queue that follows.
//! * The read for the successor may be answered by a member that lags behind. It also shows who comes after, which the
//!   client remembers and a handoff carries on: later releases use it without a read, however old it is by then.
//! * A handoff between claims of one client is the reply to the transaction; nothing is put.
//! * The end of a lease deletes all of its keys at one revision. A change of leader only delays it: it happens at any
//!   time after the client's own deadline, or never. An operator deletes any key at any time.
//! * A contender of another program enters the queue, waits until it is first, and leaves. It reads and sends no
//!   handoffs.
//! * The server refuses a request (the user's rights have changed). A refused deletion ends the session.
//!
//! Left out: sessions after the first, compaction (it loses handoffs, as above), a release without a handoff although
//! the successor reads them (a lost handoff), the read with which a try begins when it expects a busy lock.

use crate::{
    few::Few,
    frame::{
        CLAIMS, ClaimNo, EVENTUALLY, Faults, IN_ORDER, NO_ORPHAN, ONE_HOLDER, TOKENS_RISE, Tokens, steps,
    },
    rank::{self, Domain, Rank, Ranked},
    scope::Scope,
};

mod claim;
mod model;
mod order;
mod property;
mod ranks;
mod scenes;
mod server;

pub use self::model::Action;

/// A revision of the store; 0 for none. Create revisions, which are the tokens too, are never compared with those of
/// epochs: they are two domains (and one more for the second client's epoch).
type Revision = Rank;

const CREATED: Domain = 0;
const EPOCH: Domain = 1;

const CLIENTS: usize = 2;
/// One for each claim, and one of another program.
const KEYS: usize = CLAIMS + 1;
/// All but one.
const OTHERS: usize = KEYS - 1;

const NO_FOREIGN_DELETE: &str = "no claim deletes another claim's key";
const FIRST_FINDS_NO_KEY: &str = "an enqueue without unanswered copies finds no key of its claim";

/// The last claim is a try.
const TRY: &str = "a try";

steps! {
    /// A claim that ends with copies of its enqueue unanswered raises the epoch, which every copy compares.
    EpochBump: NO_ORPHAN in "2 + 1, two lost, cancel",
    /// So does a claim whose key is already gone when it leaves.
    EpochBumpWhenKeyGone: NO_ORPHAN in "2 + 1, lost, operator",
    /// No two claims use one key at the same time.
    KeyPerClaim: ONE_HOLDER in "2 + 1",
    /// A key with an unconfirmed request is not reused.
    UnconfirmedKeyRetired: NO_FOREIGN_DELETE in "2 + 1, two lost, cancel",
    /// Only the bumps after the last copy was sent fence a claim's copies.
    LastCopyTagsTheClaim: NO_ORPHAN in "2, three lost, two cancels",
    /// A claim whose copies are fenced deletes its key all the same: one of them may have created it before.
    FencedCopyMayHaveCreated: NO_ORPHAN in "2, two lost, two cancels",
    /// A handoff counts only for the create revision that it names.
    HandoffNamesRevision: ONE_HOLDER in "2 + 1, another program, cancel",
    /// The transaction of a handoff compares that its receiver, who may have been read long ago, is still there.
    HandoffComparesReceiver: ONE_HOLDER in "2 + 1, operator",
    /// What is known of the order is forgotten when that compare fails.
    WrongOrderForgotten: EVENTUALLY in "2 + 1, cancel",
    /// The end of the predecessor causes a read of the queue; only the read grants.
    ReadBeforeGrant: ONE_HOLDER in "2 + 1, cancel",
    /// A read of the queue grants only if it finds the claim's own key, and none in front of it.
    ReadFindsOwnKey: ONE_HOLDER in "2 + 1, operator",
    /// A waiter reads the queue now and then, also without a notification.
    Recheck: EVENTUALLY in "2 + 1, lost",
    /// The re-check compares create revisions: a later claim may reuse the predecessor's key.
    RecheckComparesRevisions: EVENTUALLY in "2 + 1, lost",
    /// A try is queued only when the queue is empty.
    TryNeedsEmptyQueue: ONE_HOLDER in "2 + 1, a try",
    /// A client stops relying on its holds before the server ends its lease.
    DeadlineBeforeExpiry: ONE_HOLDER in "2 + 1, lease ends",
    /// The deadline also covers a grant that was answered before it and arrives later.
    DeadlineOfLateGrants: ONE_HOLDER in "2 + 1, lease ends",
    /// A hold can end without a handoff, where the next contender reads none.
    ReleaseWithoutHandoff: EVENTUALLY in "2 + 1, another program",
    /// A refused deletion ends the session.
    RefusalEndsSession: NO_ORPHAN in "2 + 1, refused",
}

/// The model.
pub type Etcd = Scope<Step>;

/// The state of the server, the clients and everything that is on its way between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The highest create revision, and the highest of each epoch, that still occur anywhere.
    created_last: Revision,
    epoch_last: [Revision; CLIENTS],
    /// The queue. Keys are named after the claim that used them first.
    keys: [Option<Key>; KEYS],
    /// The other program believes to hold the lock.
    foreign_holds: bool,
    /// The mod revisions of the epoch keys, 0 when gone.
    epochs: [Revision; CLIENTS],
    /// Handoffs on their way to a client, the oldest first.
    handoffs: [Few<Handoff, 4>; CLIENTS],
    clients: [Client; CLIENTS],
    claims: [Claim; CLAIMS],
    /// Requests whose senders no longer wait for the reply.
    late: Few<Request, 4>,
    faults: Faults,
    tokens: Tokens,
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    created: Revision,
    /// The claim whose enqueue created it.
    by: ClaimNo,
}

/// A key with its create revision.
type Contender = (ClaimNo, Revision);

/// The value of a handoff key: who is granted, and who comes after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Handoff {
    to: Contender,
    next: Few<Contender, OTHERS>,
}

/// Consecutive contenders from a create revision on, exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Order {
    after: Revision,
    keys: Few<Contender, OTHERS>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The client has ended its session; the lease may still exist.
    session_ended: bool,
    lease_gone: bool,
    /// The epoch as far as the client knows it.
    epoch: Revision,
    reusable_keys: Few<ClaimNo, 2>,
    /// Who comes after the next hold, as far as the client knows it.
    order: Order,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    New,
    Enqueueing,
    Waiting,
    Held,
    /// The hold ends: `leave`.
    Leaving,
    /// What exists under the key does not belong to the hold: `finish`.
    Finishing,
    Withdrawing,
    Ended,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    key: Option<ClaimNo>,
    own: Revision,
    unanswered: u8,
    /// The highest epoch that the unanswered copies carry.
    unanswered_epoch: Revision,
    unconfirmed: bool,
    given_up: bool,
    /// An operator deleted its key when that was the first one.
    evicted: bool,
    /// The create revision in a handoff that came before `own` was known.
    early_handoff: Revision,
    granted: bool,
    alone: bool,
    call: Call,
    /// Of a waiter: the key in front of it, or an earlier one of its own client.
    predecessor: Option<Contender>,
    /// Whether the waiter has looked for it.
    looked: bool,
    /// The client was notified of the predecessor's end.
    notified: bool,
}

/// The request of a claim that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Call {
    #[default]
    Idle,
    Sent(Request),
    Enqueued(EnqueueReply),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: ClaimNo,
    key: ClaimNo,
    kind: RequestKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum RequestKind {
    Enqueue { epoch: Revision },
    LeaveEmpty { own: Revision, bump: bool },
    LeaveWithoutHandoff { own: Revision, bump: bool },
    LeaveWithHandoff { own: Revision, handoff: Handoff, bump: bool },
    Withdraw { bump: bool },
}

impl Default for RequestKind {
    fn default() -> Self {
        Self::Withdraw { bump: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EnqueueReply {
    /// 0 when the key does not exist.
    own: Revision,
    contenders: u8,
    epoch: Revision,
}

/// The outcome of a request that deletes a key.
enum Deletion {
    Done,
    KeyGone,
    KeyRemains(Revision),
}

impl Etcd {
    fn waits(&self, claim: ClaimNo) -> bool {
        !(self.is(TRY) && claim.index() + 1 == self.count())
    }

    /// Whether events of a predecessor's end are part of the model.
    fn has_events(&self) -> bool {
        !self.has(Step::Recheck) || !self.has(Step::ReadBeforeGrant)
    }
}

impl RequestKind {
    /// Whether the request raises the epoch.
    fn bumps(&self) -> bool {
        match *self {
            Self::Enqueue { .. } => false,
            Self::LeaveEmpty { bump, .. }
            | Self::LeaveWithoutHandoff { bump, .. }
            | Self::LeaveWithHandoff { bump, .. }
            | Self::Withdraw { bump } => bump,
        }
    }
}
