//! The transactions of the protocol, and what their answers say. No I/O.
//!
//! Order in a queue is the order of *create* revisions: a key that somebody puts a second time keeps its place.

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use crate::{
    error::Fault,
    keys::{ClaimKey, ClientKeys, Queue},
    mail::Mail,
};

/// A revision of the store: the create revision of a key, or the moment of an answer.
pub(crate) type Revision = i64;

/// A key of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) key: Vec<u8>,
    pub(crate) created: Revision,
}

impl Contender {
    fn from_kv(kv: &KeyValue) -> Self {
        Self { key: kv.key().to_vec(), created: kv.create_revision() }
    }

    /// Its client, which reads mail; `None` where that is not a lockkit client.
    pub(crate) fn client(&self) -> Option<ClientKeys> {
        Some(ClaimKey::parse(str::from_utf8(&self.key).ok()?)?.client())
    }
}

/// Who claims, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claiming<'a> {
    pub(crate) queue: &'a Queue,
    pub(crate) key: &'a str,
    pub(crate) client: &'a ClientKeys,
}

/// What a transaction says that tried to enqueue a claim.
#[derive(Clone, Debug)]
pub(crate) struct Enqueued {
    /// The moment of the answer.
    pub(crate) revision: Revision,
    /// The create revision of the claim's key; `None` when it is not there.
    pub(crate) own: Option<Revision>,
    /// How many keys the queue has, the own one included.
    pub(crate) contenders: i64,
    /// The newest two of them; after a first enqueue the own key and its predecessor.
    pub(crate) newest: Vec<Contender>,
    /// The mod revision of the epoch key, told when the compares failed: 0 when it is gone.
    pub(crate) epoch: Option<Revision>,
}

/// Creates the claim's key, unless it is there already, or the epoch has moved since the caller looked (then an
/// earlier claim of this client ended while copies of its enqueue were on their way, and this may be one of them), or,
/// for a try, anybody else is in the queue. Answers who is in the queue.
pub(crate) fn enqueue(claiming: &Claiming<'_>, epoch: Revision, metadata: String, wait: bool) -> Txn {
    let Claiming { queue, key, client } = *claiming;
    let mut compares = vec![
        Compare::create_revision(key, CompareOp::Equal, 0),
        Compare::mod_revision(&*client.epoch, CompareOp::Equal, epoch),
    ];
    if !wait {
        compares.push(Compare::create_revision(queue.as_str(), CompareOp::Equal, 0).with_prefix());
    }
    let newest = || {
        let options = keys_of_queue().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(2);
        TxnOp::get(queue.as_str(), Some(options))
    };
    let keys_only = || Some(GetOptions::new().with_keys_only());
    Txn::new()
        .when(compares)
        .and_then([TxnOp::put(key, metadata, Some(PutOptions::new().with_lease(client.lease))), newest()])
        .or_else([newest(), TxnOp::get(key, keys_only()), TxnOp::get(&*client.epoch, keys_only())])
}

/// Reads the answer to [`enqueue`].
pub(crate) fn enqueued(answer: &TxnResponse) -> Result<Enqueued, Fault> {
    let revision = revision_of(answer.header())?;
    match answer.op_responses().as_slice() {
        [TxnOpResponse::Put(_), TxnOpResponse::Get(newest)] => Ok(Enqueued {
            revision,
            own: Some(revision),
            contenders: newest.count(),
            newest: contenders(newest),
            epoch: None,
        }),
        [TxnOpResponse::Get(newest), TxnOpResponse::Get(own), TxnOpResponse::Get(epoch)] => Ok(Enqueued {
            revision,
            own: own.kvs().first().map(KeyValue::create_revision),
            contenders: newest.count(),
            newest: contenders(newest),
            epoch: Some(epoch.kvs().first().map_or(0, KeyValue::mod_revision)),
        }),
        _ => Err(Fault::nonsense("an answer to another transaction")),
    }
}

/// Ends a hold that has nobody behind it: fails when anybody is in the queue beside the own key, and when that is gone.
pub(crate) fn leave_empty(claiming: &Claiming<'_>, own: Revision, fence: bool) -> Txn {
    let queue = claiming.queue.as_str();
    let only_own = [
        Compare::create_revision(queue, CompareOp::Greater, own - 1).with_prefix(),
        Compare::create_revision(queue, CompareOp::Less, own + 1).with_prefix(),
    ];
    leave(claiming, only_own.into(), None, fence)
}

/// Ends a hold and tells the successor's client that its claim is next: fails when either of them is gone.
pub(crate) fn hand_over(
    claiming: &Claiming<'_>,
    own: Revision,
    successor: &Contender,
    to: &ClientKeys,
    fence: bool,
) -> Txn {
    let both_there = [
        Compare::create_revision(claiming.key, CompareOp::Equal, own),
        Compare::create_revision(&*successor.key, CompareOp::Equal, successor.created),
    ];
    let key = String::from_utf8_lossy(&successor.key).into_owned();
    let mail = Mail { key, created: successor.created };
    // The successor's lease: the mail ends with the client that it is for.
    let options = PutOptions::new().with_lease(to.lease);
    let mail = TxnOp::put(&*to.mailbox, mail.to_json(), Some(options));
    leave(claiming, both_there.into(), Some(mail), fence)
}

/// Ends a hold without telling anybody: the successor watches its predecessor.
pub(crate) fn leave_untold(claiming: &Claiming<'_>, own: Revision, fence: bool) -> Txn {
    leave(claiming, vec![Compare::create_revision(claiming.key, CompareOp::Equal, own)], None, fence)
}

fn leave(claiming: &Claiming<'_>, compares: Vec<Compare>, mail: Option<TxnOp>, fence: bool) -> Txn {
    let mut operations = removal(claiming, fence);
    operations.extend(mail);
    Txn::new()
        .when(compares)
        .and_then(operations)
        .or_else([TxnOp::get(claiming.key, Some(GetOptions::new().with_keys_only()))])
}

/// Takes the claim's key away, whatever there is of it. With `fence` no copy of its enqueue that is still on its way
/// can bring it back.
pub(crate) fn withdraw(claiming: &Claiming<'_>, fence: bool) -> Txn {
    Txn::new().and_then(removal(claiming, fence))
}

fn removal(claiming: &Claiming<'_>, fence: bool) -> Vec<TxnOp> {
    let mut operations = vec![TxnOp::delete(claiming.key, None)];
    if fence {
        let options = PutOptions::new().with_lease(claiming.client.lease);
        operations.push(TxnOp::put(&*claiming.client.epoch, "", Some(options)));
    }
    operations
}

/// How a transaction ended that was to take a key away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It did.
    Done,
    /// The key was gone before.
    Gone,
    /// The key is there, with this create revision.
    Still(Revision),
}

/// Reads the answer to one of the transactions that end a hold.
pub(crate) fn left(answer: &TxnResponse) -> Result<Left, Fault> {
    if answer.succeeded() {
        return Ok(Left::Done);
    }
    match answer.op_responses().first() {
        Some(TxnOpResponse::Get(own)) => {
            Ok(own.kvs().first().map_or(Left::Gone, |kv| Left::Still(kv.create_revision())))
        }
        _ => Err(Fault::nonsense("an answer to another transaction")),
    }
}

/// A read of who comes next after this create revision.
pub(crate) fn successor_of(own: Revision) -> GetOptions {
    keys_of_queue()
        .with_min_create_revision(own + 1)
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1)
}

/// A read of the own key and of its predecessor, at one revision.
pub(crate) fn own_and_predecessor(own: Revision) -> GetOptions {
    keys_of_queue()
        .with_max_create_revision(own)
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_limit(2)
}

/// A read that only counts.
pub(crate) fn anybody() -> GetOptions {
    GetOptions::new().with_prefix().with_count_only()
}

fn keys_of_queue() -> GetOptions {
    GetOptions::new().with_prefix().with_keys_only()
}

/// The keys of an answer, in its order.
pub(crate) fn contenders(answer: &GetResponse) -> Vec<Contender> {
    answer.kvs().iter().map(Contender::from_kv).collect()
}

/// The revision at which an answer was true.
pub(crate) fn revision_of(header: Option<&etcd_client::ResponseHeader>) -> Result<Revision, Fault> {
    header
        .map(etcd_client::ResponseHeader::revision)
        .ok_or_else(|| Fault::nonsense("an answer without a header"))
}

/// A linearizable read of these keys, which are few enough for one transaction.
pub(crate) fn look_for<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Txn {
    let read = |key| TxnOp::get(key, Some(GetOptions::new().with_keys_only()));
    Txn::new().and_then(keys.into_iter().map(read).collect::<Vec<_>>())
}

/// The create revisions of the keys of [`look_for`], in its order; `None` for one that is not there.
pub(crate) fn found(answer: &TxnResponse) -> Vec<Option<Revision>> {
    let created = |operation: &TxnOpResponse| match operation {
        TxnOpResponse::Get(key) => key.kvs().first().map(KeyValue::create_revision),
        _ => None,
    };
    answer.op_responses().iter().map(created).collect()
}
