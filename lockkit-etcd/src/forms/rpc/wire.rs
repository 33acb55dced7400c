//! The requests of a claim, and the parsing of their replies.

use std::time::Duration;

use crate::{
    call::Server,
    client::{
        Client, GetOptions, LockRequest, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
    },
    error::RequestError,
    keys::{LeaseId, QueuePath},
    wire::{QueuedKey, Revision, queued_keys},
};

/// A lease that nobody has, because etcd's leases have large ids.
const NO_LEASE: LeaseId = 1;

/// Where a claim's key is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    /// No other key is older; the key has this create revision.
    First(Revision),
    Behind,
    /// The key does not exist.
    Absent,
}

/// Returns the key that the RPC puts.
pub(crate) fn key(queue: &QueuePath, lease: LeaseId) -> Vec<u8> {
    format!("{}{lease:x}", queue.as_str()).into_bytes()
}

/// Calls the RPC, which returns when the lock is acquired: at any later time. Dropping the future cancels it at the
/// server, which then deletes the key.
pub(crate) async fn lock(server: &Server, queue: &QueuePath, lease: LeaseId) -> Result<(), RequestError> {
    let name = queue.as_str().strip_suffix('/').unwrap_or(queue.as_str());
    let request = |client: &Client| {
        let (client, name) = (client.clone(), name.into());
        async move { client.lock(LockRequest { name, lease }).await }
    };
    server.send(request).await.map(drop)
}

/// Returns a linearizable read of the claim's key and the oldest key of the queue.
pub(crate) fn read_position(queue: &QueuePath, key: &[u8]) -> Txn {
    let oldest = GetOptions::new()
        .with_prefix()
        .with_keys_only()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1);
    let own = TxnOp::get(key, Some(GetOptions::new().with_keys_only()));
    Txn::new().and_then([own, TxnOp::get(queue.as_str(), Some(oldest))])
}

/// Parses the reply to [`read_position`].
pub(crate) fn parse_position(answer: &TxnResponse) -> Result<QueuePosition, RequestError> {
    let responses = answer.op_responses();
    let [TxnOpResponse::Get(own), TxnOpResponse::Get(oldest)] = responses.as_slice() else {
        return Err(RequestError::unexpected("a reply to another transaction"));
    };
    let (own, oldest) = (queued_keys(own), queued_keys(oldest));
    Ok(match (own.as_slice(), oldest.as_slice()) {
        ([], _) => QueuePosition::Absent,
        ([QueuedKey { key: own, created }], [QueuedKey { key: oldest, .. }]) if own == oldest => {
            QueuePosition::First(*created)
        }
        _ => QueuePosition::Behind,
    })
}

/// Asks the leader for anything.
pub(crate) async fn ping(server: &Server, window: Duration) -> Result<(), RequestError> {
    let request = || {
        server.call(|client| {
            let mut leases = client.lease_client();
            async move { leases.time_to_live(NO_LEASE, None).await }
        })
    };
    server.repeat(window, request).await.map(drop)
}
