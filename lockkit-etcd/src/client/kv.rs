//! Reads and transactions.

use super::{
    Connection, Result,
    pb::etcdserverpb::{
        self as pb, compare::TargetUnion, kv_client, request_op::Request, response_op::Response,
    },
};

pub(crate) use super::pb::{
    etcdserverpb::{
        Compare, RangeResponse as GetResponse, ResponseHeader, TxnResponse,
        compare::CompareResult as CompareOp,
        range_request::{SortOrder, SortTarget},
    },
    mvccpb::KeyValue,
};

/// Returns the end of the range of all keys with this prefix.
pub(crate) fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let Some(last) = prefix.iter().rposition(|byte| *byte < 0xff) else {
        // There is no greater key: to the end of all keys.
        return vec![0];
    };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end
}

/// Returns the key and the end of the range that begins with it: of one key, or of all keys with this prefix.
pub(super) fn range(key: Vec<u8>, prefix: bool) -> (Vec<u8>, Vec<u8>) {
    match (prefix, key.is_empty()) {
        (false, _) => (key, Vec::new()),
        // The empty key is not allowed; the first key is one zero byte.
        (true, true) => (vec![0], vec![0]),
        (true, false) => {
            let end = end_of_prefix(&key);
            (key, end)
        }
    }
}

/// Sends reads and transactions.
#[derive(Clone)]
pub(crate) struct KvClient(kv_client::KvClient<Connection>);

impl KvClient {
    pub(super) fn new(connection: Connection) -> Self {
        Self(kv_client::KvClient::new(connection))
    }

    pub(crate) async fn get(
        &mut self,
        key: impl Into<Vec<u8>>,
        options: Option<GetOptions>,
    ) -> Result<GetResponse> {
        Ok(self.0.range(options.unwrap_or_default().at(key)).await?.into_inner())
    }

    pub(crate) async fn txn(&mut self, txn: Txn) -> Result<TxnResponse> {
        Ok(self.0.txn(txn.0).await?.into_inner())
    }
}

/// What a read returns.
#[derive(Clone, Debug, Default)]
pub(crate) struct GetOptions {
    request: pb::RangeRequest,
    prefix: bool,
    end: Option<Vec<u8>>,
}

impl GetOptions {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Reads all keys with this prefix.
    pub(crate) fn with_prefix(mut self) -> Self {
        self.prefix = true;
        self
    }

    /// Reads all keys before this one.
    pub(crate) fn with_range(mut self, end: impl Into<Vec<u8>>) -> Self {
        self.end = Some(end.into());
        self
    }

    pub(crate) fn with_limit(mut self, limit: i64) -> Self {
        self.request.limit = limit;
        self
    }

    pub(crate) fn with_sort(mut self, target: SortTarget, order: SortOrder) -> Self {
        self.request.sort_target = target.into();
        self.request.sort_order = order.into();
        self
    }

    /// Reads what the member knows, which may be old.
    pub(crate) fn with_serializable(mut self) -> Self {
        self.request.serializable = true;
        self
    }

    pub(crate) fn with_keys_only(mut self) -> Self {
        self.request.keys_only = true;
        self
    }

    pub(crate) fn with_count_only(mut self) -> Self {
        self.request.count_only = true;
        self
    }

    pub(crate) fn with_min_create_revision(mut self, revision: i64) -> Self {
        self.request.min_create_revision = revision;
        self
    }

    pub(crate) fn with_max_create_revision(mut self, revision: i64) -> Self {
        self.request.max_create_revision = revision;
        self
    }

    fn at(self, key: impl Into<Vec<u8>>) -> pb::RangeRequest {
        let (key, range_end) = range(key.into(), self.prefix);
        pb::RangeRequest { key, range_end: self.end.unwrap_or(range_end), ..self.request }
    }
}

impl GetResponse {
    pub(crate) fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }

    pub(crate) fn kvs(&self) -> &[KeyValue] {
        &self.kvs
    }

    /// Returns how many keys there are, also beyond the limit.
    pub(crate) fn count(&self) -> i64 {
        self.count
    }
}

impl ResponseHeader {
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }
}

impl KeyValue {
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn value(&self) -> &[u8] {
        &self.value
    }

    pub(crate) fn value_str(&self) -> std::result::Result<&str, std::str::Utf8Error> {
        str::from_utf8(&self.value)
    }

    pub(crate) fn create_revision(&self) -> i64 {
        self.create_revision
    }

    pub(crate) fn mod_revision(&self) -> i64 {
        self.mod_revision
    }

    /// Returns how often the key was put since it was created.
    pub(crate) fn version(&self) -> i64 {
        self.version
    }

    pub(crate) fn lease(&self) -> i64 {
        self.lease
    }
}

/// What a put changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PutOptions(pb::PutRequest);

impl PutOptions {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn with_lease(mut self, lease: i64) -> Self {
        self.0.lease = lease;
        self
    }

    /// Keeps the value of the key, which must exist.
    pub(crate) fn with_ignore_value(mut self) -> Self {
        self.0.ignore_value = true;
        self
    }

    /// Keeps the lease of the key, which must exist.
    pub(crate) fn with_ignore_lease(mut self) -> Self {
        self.0.ignore_lease = true;
        self
    }
}

impl Compare {
    fn new(
        key: impl Into<Vec<u8>>,
        op: CompareOp,
        target: pb::compare::CompareTarget,
        value: TargetUnion,
    ) -> Self {
        let (result, target) = (op.into(), target.into());
        Self { result, target, key: key.into(), target_union: Some(value), range_end: Vec::new() }
    }

    /// Compares the create revision; that of a key that does not exist is 0.
    pub(crate) fn create_revision(key: impl Into<Vec<u8>>, op: CompareOp, revision: i64) -> Self {
        Self::new(key, op, pb::compare::CompareTarget::Create, TargetUnion::CreateRevision(revision))
    }

    /// Compares the revision of the last put; that of a key that does not exist is 0.
    pub(crate) fn mod_revision(key: impl Into<Vec<u8>>, op: CompareOp, revision: i64) -> Self {
        Self::new(key, op, pb::compare::CompareTarget::Mod, TargetUnion::ModRevision(revision))
    }

    /// Compares the value; fails if the key does not exist.
    pub(crate) fn value(key: impl Into<Vec<u8>>, op: CompareOp, value: impl Into<Vec<u8>>) -> Self {
        Self::new(key, op, pb::compare::CompareTarget::Value, TargetUnion::Value(value.into()))
    }

    /// Compares all keys with this prefix. If there is none, one is compared whose revisions are 0.
    pub(crate) fn with_prefix(mut self) -> Self {
        self.range_end = end_of_prefix(&self.key);
        self
    }
}

/// An operation of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct TxnOp(Request);

impl TxnOp {
    pub(crate) fn put(
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        options: Option<PutOptions>,
    ) -> Self {
        let options = options.unwrap_or_default().0;
        Self(Request::RequestPut(pb::PutRequest { key: key.into(), value: value.into(), ..options }))
    }

    pub(crate) fn get(key: impl Into<Vec<u8>>, options: Option<GetOptions>) -> Self {
        Self(Request::RequestRange(options.unwrap_or_default().at(key)))
    }

    /// Deletes one key.
    pub(crate) fn delete(key: impl Into<Vec<u8>>) -> Self {
        Self(Request::RequestDeleteRange(pb::DeleteRangeRequest { key: key.into(), ..Default::default() }))
    }

    pub(crate) fn txn(txn: Txn) -> Self {
        Self(Request::RequestTxn(txn.0))
    }
}

/// Operations that are executed at once, or others if a compare fails.
#[derive(Clone, Debug, Default)]
pub(crate) struct Txn(pb::TxnRequest);

impl Txn {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn when(mut self, compares: impl Into<Vec<Compare>>) -> Self {
        self.0.compare = compares.into();
        self
    }

    pub(crate) fn and_then(mut self, operations: impl IntoIterator<Item = TxnOp>) -> Self {
        self.0.success = operations.into_iter().map(|op| pb::RequestOp { request: Some(op.0) }).collect();
        self
    }

    pub(crate) fn or_else(mut self, operations: impl IntoIterator<Item = TxnOp>) -> Self {
        self.0.failure = operations.into_iter().map(|op| pb::RequestOp { request: Some(op.0) }).collect();
        self
    }
}

/// The reply to one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxnOpResponse<'a> {
    Put,
    Get(&'a GetResponse),
    /// To any other operation.
    Other,
}

impl<'a> TxnOpResponse<'a> {
    fn of(operation: &'a pb::ResponseOp) -> Self {
        match &operation.response {
            Some(Response::ResponsePut(_)) => Self::Put,
            Some(Response::ResponseRange(found)) => Self::Get(found),
            _ => Self::Other,
        }
    }
}

impl TxnResponse {
    pub(crate) fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }

    /// Returns whether all compares held.
    pub(crate) fn succeeded(&self) -> bool {
        self.succeeded
    }

    /// Returns the replies in the order of the operations.
    pub(crate) fn op_responses(&self) -> Vec<TxnOpResponse<'_>> {
        self.responses.iter().map(TxnOpResponse::of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_a_prefix_ends_before_the_next_prefix() {
        for (prefix, end) in [("a/", "a0"), ("a", "b")] {
            assert_eq!(range(prefix.into(), true), (prefix.into(), end.into()));
        }
        assert_eq!(range(b"a\xff".to_vec(), true), (b"a\xff".to_vec(), b"b".to_vec()));
        assert_eq!(range(b"\xff\xff".to_vec(), true), (b"\xff\xff".to_vec(), vec![0]));
        assert_eq!(range(vec![], true), (vec![0], vec![0]));
        assert_eq!(range(b"a".to_vec(), false), (b"a".to_vec(), vec![]));
    }
}
