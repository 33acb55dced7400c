//! The transactions and reads of the protocol, and the parsing of their replies. No I/O.
//!
//! A queue is ordered by *create* revisions, so a key that is put a second time keeps its place.

use std::borrow::Cow;

use lockkit_core::FencingToken;

use crate::{
    client::{
        Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader, SortOrder,
        SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
    },
    error::RequestError,
    forms::ExclusiveKey,
    handoff::{Handoff, NextContender},
    keys::{ClaimKey, ClientKeys, LeaseId, QueuePath},
};

/// A revision of the store: that of a reply, or the create or mod revision of a key.
pub(crate) type Revision = i64;

/// Returns the fencing token of a holder whose key has this create revision, which is never negative
/// (`docs/decisions/0029-etcd-token-is-the-create-revision.md`).
pub(crate) fn token(created: Revision) -> FencingToken {
    FencingToken::new(created.unsigned_abs())
}

/// A key of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedKey {
    pub(crate) key: Vec<u8>,
    pub(crate) created: Revision,
}

impl QueuedKey {
    pub(crate) fn from_kv(kv: &KeyValue) -> Self {
        Self { key: kv.key().to_vec(), created: kv.create_revision() }
    }

    /// Returns the key as text.
    pub(crate) fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.key)
    }

    /// Returns the keys of its client; `None` for a key of another program, which reads no handoff.
    pub(crate) fn client(&self) -> Option<ClientKeys> {
        Some(ClaimKey::parse(str::from_utf8(&self.key).ok()?)?.client())
    }
}

/// The keys that the transactions of one claim name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryKeys<'a> {
    pub(crate) queue: &'a QueuePath,
    pub(crate) key: &'a str,
    pub(crate) client: &'a ClientKeys,
    /// The claim's guard key.
    pub(crate) guard: Option<&'a ExclusiveKey>,
}

/// Where a claim may create its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnqueueMode {
    /// In an empty queue only: a try.
    OnlyFirst,
    /// Anywhere. The key does not exist, because every copy of this enqueue was answered, if one was sent at all.
    Anywhere,
    /// Anywhere, unless an unanswered copy of this enqueue has created the key.
    AnywhereOnce,
}

/// The reply to [`enqueue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnqueueReply {
    /// The create revision of the claim's key; `None` if it does not exist.
    pub(crate) own: Option<Revision>,
    /// The number of keys in the queue, including the claim's; 0 if it was not read.
    pub(crate) contenders: i64,
    /// The mod revision of the epoch key, if the compares failed; 0 if it does not exist.
    pub(crate) epoch: Option<Revision>,
}

/// Creates the claim's key. Creates nothing if the epoch has changed, for a try if the queue is not empty, and for a
/// repeated enqueue if the key exists. An epoch that has changed means that a claim of this client ended while copies of
/// its enqueue were under way; this may be one of them.
///
/// It executes as little as it can, because everything that a transaction reads holds up all other writes of the
/// server. Who is in front is read later, and only if no handoff comes.
///
/// A copy without the compare of the key may arrive when a later copy has created the key. It puts the same value again,
/// which changes neither the place in the queue nor the token. What would be undone by that bumps the epoch before
/// ([`rewrite`]).
pub(crate) fn enqueue(keys: &EntryKeys<'_>, epoch: Revision, value: &str, mode: EnqueueMode) -> Txn {
    let EntryKeys { queue, key, client, .. } = *keys;
    let count = || TxnOp::get(queue.as_str(), Some(count_queue()));
    let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(client.lease)));
    let same_epoch = Compare::mod_revision(&*client.epoch, CompareOp::Equal, epoch);
    let found = || [read_key(&*client.epoch), count(), read_key(key)];
    match mode {
        EnqueueMode::OnlyFirst => {
            // The claim's own key is in the queue, so this compares it too.
            let is_empty = Compare::create_revision(queue.as_str(), CompareOp::Equal, 0).with_prefix();
            Txn::new().when([same_epoch, is_empty]).and_then([put]).or_else(found())
        }
        EnqueueMode::Anywhere => {
            Txn::new().when([same_epoch]).and_then([put, count()]).or_else([read_key(&*client.epoch)])
        }
        EnqueueMode::AnywhereOnce => {
            let is_absent = Compare::create_revision(key, CompareOp::Equal, 0);
            Txn::new().when([same_epoch, is_absent]).and_then([put, count()]).or_else(found())
        }
    }
}

/// Parses the reply to [`enqueue`].
pub(crate) fn parse_enqueue(answer: &TxnResponse) -> Result<EnqueueReply, RequestError> {
    let revision = revision_of(answer.header())?;
    let epoch_of = |epoch: &GetResponse| Some(epoch.kvs().first().map_or(0, KeyValue::mod_revision));
    let (own, contenders, epoch) = match *answer.op_responses() {
        [TxnOpResponse::Put] => (Some(revision), 1, None),
        [TxnOpResponse::Put, TxnOpResponse::Get(queue)] => (Some(revision), queue.count(), None),
        [TxnOpResponse::Get(epoch)] => (None, 0, epoch_of(epoch)),
        [TxnOpResponse::Get(epoch), TxnOpResponse::Get(queue), TxnOpResponse::Get(own)] => {
            (own.kvs().first().map(KeyValue::create_revision), queue.count(), epoch_of(epoch))
        }
        _ => return Err(RequestError::unexpected("a reply to another transaction")),
    };
    Ok(EnqueueReply { own, contenders, epoch })
}

/// Ends a hold without a successor. Fails if the queue has other keys, or if the hold's key is gone: a compare of many
/// keys fails if one of them differs, and if there is none. With `tells_which` the reply shows which of the two it is.
pub(crate) fn release_alone(keys: &EntryKeys<'_>, own: Revision, bump_epoch: bool, tells_which: bool) -> Txn {
    let only_own = Compare::create_revision(keys.queue.as_str(), CompareOp::Equal, own).with_prefix();
    let removal = Txn::new().when([only_own]).and_then(removal_operations(keys, bump_epoch));
    removal.or_else(tells_which.then(|| read_key(keys.key)))
}

/// Ends a hold with a handoff. Fails if either of the two entries is gone. Without `put_handoff` nothing is written: the
/// successor is of the same client, which learns of the handoff by the reply.
pub(crate) fn handoff(
    keys: &EntryKeys<'_>,
    own: Revision,
    successor: &QueuedKey,
    put_handoff: Option<TxnOp>,
    bump_epoch: bool,
) -> Txn {
    let both_exist = vec![
        Compare::create_revision(keys.key, CompareOp::Equal, own),
        Compare::create_revision(&*successor.key, CompareOp::Equal, successor.created),
    ];
    release_if(keys, both_exist, put_handoff, bump_epoch)
}

/// Writes the handoff key of a client: what its claim is granted, and who is next.
pub(crate) fn put_handoff(successor: &QueuedKey, next: Vec<NextContender>, to: &ClientKeys) -> TxnOp {
    let handoff = Handoff { key: successor.name().into_owned(), created: successor.created, next };
    // With the lease of the successor's client, so that the handoff key ends with that client.
    let options = PutOptions::new().with_lease(to.lease);
    TxnOp::put(&*to.handoff_key, handoff.to_json(), Some(options))
}

/// Ends a hold without a handoff; the successor watches its predecessor.
pub(crate) fn release_without_handoff(keys: &EntryKeys<'_>, own: Revision, bump_epoch: bool) -> Txn {
    release_if(keys, vec![Compare::create_revision(keys.key, CompareOp::Equal, own)], None, bump_epoch)
}

fn release_if(keys: &EntryKeys<'_>, compares: Vec<Compare>, handoff: Option<TxnOp>, bump_epoch: bool) -> Txn {
    let mut operations = removal_operations(keys, bump_epoch);
    operations.extend(handoff);
    Txn::new().when(compares).and_then(operations).or_else([read_key(keys.key)])
}

/// Deletes the claim's key, whatever its create revision. With `bump_epoch`, copies of the enqueue that are still under
/// way cannot create it again.
pub(crate) fn withdraw(keys: &EntryKeys<'_>, bump_epoch: bool) -> Txn {
    Txn::new().and_then(removal_operations(keys, bump_epoch))
}

fn removal_operations(keys: &EntryKeys<'_>, bump_epoch: bool) -> Vec<TxnOp> {
    let mut operations = vec![TxnOp::delete(keys.key)];
    operations.extend(keys.guard.into_iter().flat_map(ExclusiveKey::removals));
    operations.extend(bump_epoch.then(|| put_epoch(keys.client)));
    operations
}

/// Bumps the epoch of a client.
pub(crate) fn put_epoch(client: &ClientKeys) -> TxnOp {
    TxnOp::put(&*client.epoch, "", Some(PutOptions::new().with_lease(client.lease)))
}

/// The result of a transaction that deletes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReply {
    /// The key was deleted.
    Done,
    /// The key did not exist.
    AlreadyGone,
    /// The compare failed; the key exists with this create revision.
    StillThere(Revision),
    /// The compare failed; whether the key exists was not read.
    Refuted,
}

/// Parses the reply to one of the transactions that delete a key.
pub(crate) fn parse_removal(answer: &TxnResponse) -> Result<RemovalReply, RequestError> {
    if answer.succeeded() {
        return Ok(RemovalReply::Done);
    }
    match answer.op_responses().first() {
        None => Ok(RemovalReply::Refuted),
        Some(TxnOpResponse::Get(own)) => Ok(match own.kvs().first() {
            None => RemovalReply::AlreadyGone,
            Some(kv) => RemovalReply::StillThere(kv.create_revision()),
        }),
        _ => Err(RequestError::unexpected("a reply to another transaction")),
    }
}

/// What changes in the key of a held claim. The rest stays, and so does the create revision.
#[derive(Clone, Debug)]
pub(crate) enum Rewrite {
    /// Its value.
    Value(String),
    /// The lease that it ends with.
    Lease(LeaseId),
}

impl Rewrite {
    /// Returns whether this key is as the rewrite leaves it.
    pub(crate) fn is_done(&self, kv: &KeyValue) -> bool {
        match self {
            Self::Value(value) => kv.value() == value.as_bytes(),
            Self::Lease(lease) => kv.lease() == *lease,
        }
    }
}

/// Puts the key of a held claim again. Reads it instead if it does not have both revisions. With `bump_epoch`, copies of
/// the enqueue that are still under way cannot undo the change.
pub(crate) fn rewrite(
    keys: &EntryKeys<'_>,
    own: Revision,
    modified: Revision,
    change: &Rewrite,
    bump_epoch: bool,
) -> Txn {
    let key = keys.key;
    let put = match change {
        Rewrite::Value(value) => TxnOp::put(key, &**value, Some(PutOptions::new().with_ignore_lease())),
        Rewrite::Lease(lease) => {
            TxnOp::put(key, "", Some(PutOptions::new().with_ignore_value().with_lease(*lease)))
        }
    };
    Txn::new()
        .when([
            Compare::create_revision(key, CompareOp::Equal, own),
            Compare::mod_revision(key, CompareOp::Equal, modified),
        ])
        .and_then([put].into_iter().chain(bump_epoch.then(|| put_epoch(keys.client))))
        .or_else([TxnOp::get(key, None)])
}

/// Puts the record of a lock if this claim key exists, and the record is the one that was read. Otherwise reads the
/// claim key.
pub(crate) fn write_record(key: &str, own: Revision, record: &Record<'_>) -> Txn {
    let put = TxnOp::put(record.key, record.value, Some(PutOptions::new().with_lease(record.lease)));
    Txn::new()
        .when([
            Compare::create_revision(key, CompareOp::Equal, own),
            Compare::mod_revision(record.key, CompareOp::Equal, record.replaces),
        ])
        .and_then([put])
        .or_else([read_key(key)])
}

/// A record that is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
    pub(crate) lease: LeaseId,
    /// The mod revision of the record that it replaces; 0 if there is none.
    pub(crate) replaces: Revision,
}

/// Returns the key that was read by a transaction whose compares have failed.
pub(crate) fn found_instead(answer: &TxnResponse) -> Result<Option<KeyValue>, RequestError> {
    match answer.op_responses().into_iter().next() {
        Some(TxnOpResponse::Get(found)) => Ok(found.kvs().first().cloned()),
        _ => Err(RequestError::unexpected("a reply to another transaction")),
    }
}

/// Options of a read of the holder: the oldest key of the queue, with its value.
pub(crate) fn holder() -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1)
}

/// Options of a read of the next keys in the queue after this create revision, at most so many.
pub(crate) fn successors_of(own: Revision, limit: i64) -> GetOptions {
    keys_of_queue()
        .with_min_create_revision(own + 1)
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(limit)
}

/// Options of a read of the claim's key and its predecessor, at one revision.
pub(crate) fn own_and_predecessor(own: Revision) -> GetOptions {
    keys_of_queue()
        .with_max_create_revision(own)
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_limit(2)
}

/// Options of a read that only counts the keys of a queue.
pub(crate) fn count_queue() -> GetOptions {
    GetOptions::new().with_prefix().with_count_only()
}

fn keys_of_queue() -> GetOptions {
    GetOptions::new().with_prefix().with_keys_only()
}

/// Returns the keys of a reply, in its order.
pub(crate) fn queued_keys(answer: &GetResponse) -> Vec<QueuedKey> {
    answer.kvs().iter().map(QueuedKey::from_kv).collect()
}

/// Returns the revision of a reply.
pub(crate) fn revision_of(header: Option<&ResponseHeader>) -> Result<Revision, RequestError> {
    header.map(ResponseHeader::revision).ok_or_else(|| RequestError::unexpected("a reply without a header"))
}

/// Returns a linearizable read of these keys; at most 128, the limit of one transaction.
pub(crate) fn read_keys<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Txn {
    Txn::new().and_then(keys.into_iter().map(read_key))
}

/// Reads one key without its value.
fn read_key(key: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_keys_only()))
}

/// Returns the create revisions of the keys of [`read_keys`], in its order; `None` for a key that does not exist.
pub(crate) fn create_revisions(answer: &TxnResponse) -> Vec<Option<Revision>> {
    let created = |operation: &TxnOpResponse<'_>| match operation {
        TxnOpResponse::Get(key) => key.kvs().first().map(KeyValue::create_revision),
        _ => None,
    };
    answer.op_responses().iter().map(created).collect()
}
