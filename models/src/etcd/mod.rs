//! The etcd queue: `lockkit-etcd/src/{acquire, release, txn, claims, watch, spare}.rs`.
//!
//! Two clients, a lease each, with two claims each on one lock; the claims of a client run side by side or one after
//! the other, and then the later one may use the key of the earlier one again.
//!
//! * An enqueue is executed and answered in two steps, the end of a claim is sent and executed in two, with anything in
//!   between. When a reply is lost, its sender gives up waiting, and the request is executed at any later time, or was
//!   already.
//! * Mails come in order over the watch; any of them may be lost. News of a predecessor's end only make a waiter look
//!   earlier than its re-check, which may come at any time, so they appear only where that step is taken out. A re-check
//!   that finds both keys in place changes nothing; otherwise it is one step with the look that follows.
//! * The read for the successor may be answered by a member that lags behind.
//! * The end of a lease deletes all of its keys at one revision. A change of leader only makes it later: it comes at any
//!   time after the client's own deadline, or never. An operator deletes any key at any time.
//!
//! * A contender of another program comes, waits until nobody is before it, and goes; it reads no mail and sends none.
//! * The server refuses a request (the user's rights have changed). Where that would have ended a claim, the session is over.
//!
//! Left out: sessions after the first, compaction (it loses mails, as above), the end of a hold
//! that tells nobody (a mail that is lost), the read that a try begins with when it expects to find somebody.

use crate::{
    few::Few,
    rank::{self, Domain, Rank, Ranked},
};

mod claims;
mod model;
mod property;
mod ranks;
mod scenes;
mod server;

/// A revision of the store; 0 for none. Create revisions, those of epochs and those that become tokens are never
/// compared with each other: three domains (and one per epoch key).
type Revision = Rank;

const CREATED: Domain = 0;
const TOKEN: Domain = 1;
const EPOCH: Domain = 2;

const CLIENTS: usize = 2;
const CLAIMS: usize = 4;
/// One for each claim, and one of another program.
const KEYS: usize = CLAIMS + 1;
const FOREIGN: ClaimNo = ClaimNo(CLAIMS as u8);

const ONE_HOLDER: &str = "one holder at a time";
const TOKENS_RISE: &str = "tokens are unique and rise";
const IN_ORDER: &str = "first come, first served";
const NO_FOREIGN_DELETE: &str = "nobody deletes another claim's key";
const NO_ORPHAN: &str = "no orphan at rest";
const IN_THE_END: &str = "in the end everybody is served";

/// The safety steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A claim that ends with copies of its enqueue unanswered moves the epoch, which every copy compares.
    EpochFence,
    /// So does one whose key was found to be gone already when it left.
    FenceWhenGone,
    /// Every claim has a key that no other claim has at the same time.
    KeyPerClaim,
    /// A key that a request left in doubt is not used again.
    DoubtfulKeyRetired,
    /// A mail counts only for the create revision that it names.
    MailNamesIncarnation,
    /// The end of the predecessor is a reason to look, not a grant.
    LookBeforeGrant,
    /// A look finds the own key as well as nobody in front of it.
    LookFindsOwnKey,
    /// A waiter looks now and then although nothing has told it to.
    Recheck,
    /// The re-check compares create revisions: a later claim may use the predecessor's key again.
    RecheckNamesIncarnation,
    /// A try is queued only when nobody is in the queue.
    TryFindsQueueEmpty,
    /// A client stops to believe in its holds before the server ends its lease.
    DeadlineBeforeExpiry,
    /// So it does in a grant that was answered before that, and arrives later.
    DeadlineOfGrants,
    /// A hold ends also where the next contender reads no mail.
    LeavesUntold,
    /// A claim whose end is refused ends the session.
    RefusalEndsSession,
}

/// How often things may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    /// Replies and mails that are lost.
    lost: u8,
    /// Callers who give up.
    cancels: u8,
    /// Keys that an operator deletes.
    deletes: u8,
    /// Clients whose deadline passes.
    lapses: u8,
    /// Contenders of other programs.
    foreign: u8,
    /// Requests that the server refuses.
    refusals: u8,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Etcd {
    without: Option<Step>,
    /// How many of A1, A2, B1, B2 there are.
    claims: usize,
    /// Whether the last one is a try.
    tries: bool,
    faults: Faults,
}

/// One of the claims A1, A2 (of one client), B1, B2 (of the other).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimNo(u8);

impl ClaimNo {
    fn all() -> impl Iterator<Item = Self> {
        (0..CLAIMS as u8).map(Self)
    }
    fn keys() -> impl Iterator<Item = Self> {
        (0..KEYS as u8).map(Self)
    }
    fn index(self) -> usize {
        usize::from(self.0)
    }
    fn client(self) -> usize {
        self.index() / 2
    }
    fn is_first(self) -> bool {
        self.0.is_multiple_of(2)
    }
}

impl std::fmt::Debug for ClaimNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(["A1", "A2", "B1", "B2", "other"][self.index()])
    }
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// As far as tokens are made of it.
    revision: Revision,
    /// The highest create revision and the highest of each epoch that are still known anywhere.
    created_last: Revision,
    epoch_last: [Revision; CLIENTS],
    /// The queue: keys named after the claim that used them first.
    keys: [Option<Key>; KEYS],
    /// The other program believes to hold the lock.
    foreign_holds: bool,
    /// The mod revisions of the epoch keys, 0 when gone.
    epochs: [Revision; CLIENTS],
    /// Mails on their way, the oldest first.
    mails: [Few<Mail, 4>; CLIENTS],
    clients: [Client; CLIENTS],
    claims: [Claim; CLAIMS],
    /// Requests for whose replies nobody waits any more.
    strays: Few<Request, 4>,
    faults: Faults,
    /// The highest token that was answered, and how many were.
    token_last: Revision,
    grants: u8,
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    created: Revision,
    /// Whose enqueue created it.
    by: ClaimNo,
}

/// A key with its create revision.
type Contender = (ClaimNo, Revision);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Mail {
    to: Contender,
    revision: Revision,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The client's session is over for it; the lease may live on.
    over: bool,
    lease_gone: bool,
    /// The epoch as far as it is known.
    epoch: Revision,
    spare_keys: Few<ClaimNo, 2>,
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
    /// What is there under the key is not the hold's: `finish`.
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
    in_doubt: bool,
    given_up: bool,
    /// An operator deleted its key when that was the first one.
    robbed: bool,
    /// Created and own revision of a mail that came before `own` was known.
    early_mail: (Revision, Revision),
    granted: Revision,
    alone: bool,
    call: Call,
    /// The token of the grant that its caller got; kept after the end as long as a claim lives that began before it.
    token: Revision,
    /// The highest token that was answered when the claim began.
    floor: Revision,
    /// Of a waiter.
    predecessor: Option<Contender>,
    /// News of its end have come.
    told: bool,
}

/// The request of a claim that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Call {
    #[default]
    Idle,
    Sent(Request),
    Answered(Answer),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: ClaimNo,
    key: ClaimNo,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Enqueue { epoch: Revision },
    LeaveEmpty { own: Revision, fence: bool },
    LeaveUntold { own: Revision, fence: bool },
    HandOver { own: Revision, to: Contender, fence: bool },
    Withdraw { fence: bool },
}

impl Default for What {
    fn default() -> Self {
        Self::Withdraw { fence: false }
    }
}

/// The answer to an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Answer {
    revision: Revision,
    /// 0 when the key is not there.
    own: Revision,
    contenders: u8,
    next: Option<Contender>,
    epoch: Revision,
}

/// How a request ended that was to take a key away.
enum Left {
    Done,
    Gone,
    Still(Revision),
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A caller asks for the lock.
    Start(ClaimNo),
    /// The claim sends the next request that its phase asks for.
    Send(ClaimNo),
    /// As `Send`, with a stale answer to the read for the successor before it.
    SendAfterStaleRead(ClaimNo),
    /// The enqueue is sent, and executed at a later time or never; its sender gives up waiting for the reply.
    SendLate(ClaimNo),
    /// The server executes the request that ends the claim, and answers.
    Execute(ClaimNo),
    /// The reply arrives.
    Receive(ClaimNo),
    /// The reply is lost; so may the request be, or it is late.
    LoseReply(ClaimNo),
    /// The server executes a request for whose reply nobody waits.
    ExecuteLate(usize),
    /// The caller leaves.
    GiveUp(ClaimNo),
    /// A mail arrives, or is lost.
    Deliver(usize),
    /// A mail is lost.
    LoseMail(usize),
    /// The re-check, and the look that follows where it does not find both keys.
    Look(ClaimNo),
    /// The watch tells the end of the predecessor.
    Told(ClaimNo),
    /// It does not.
    LoseEvent(ClaimNo),
    /// The guard is dropped.
    Release(ClaimNo),
    /// The beat misses the key of a hold.
    Miss(ClaimNo),
    /// The deadline passes without an acknowledged beat.
    Lapse(usize),
    /// The server ends the lease.
    Expire(usize),
    /// An operator deletes a key.
    Delete(ClaimNo),
    /// The server refuses the claim's request.
    Refuse(ClaimNo),
    /// Another program's contender enters the queue.
    ForeignComes,
    /// It finds nobody before it.
    ForeignIsFirst,
    /// It releases.
    ForeignGoes,
}

impl Etcd {
    fn has(&self, step: Step) -> bool {
        self.without != Some(step)
    }

    fn waits(&self, claim: ClaimNo) -> bool {
        !(self.tries && claim.index() == self.claims - 1)
    }

    /// Whether news of a predecessor's end come and get lost.
    fn tells_of_ends(&self) -> bool {
        !self.has(Step::Recheck) || !self.has(Step::LookBeforeGrant)
    }
}

impl What {
    fn fences(&self) -> bool {
        match *self {
            Self::Enqueue { .. } => false,
            Self::LeaveEmpty { fence, .. }
            | Self::LeaveUntold { fence, .. }
            | Self::HandOver { fence, .. }
            | Self::Withdraw { fence } => fence,
        }
    }
}
