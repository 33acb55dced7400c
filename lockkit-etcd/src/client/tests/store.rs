//! What a scripted server knows: keys with revisions, and leases that never expire. As much of etcd as locks need.

use std::collections::BTreeMap;

use prost::Message;
use tokio::sync::mpsc::UnboundedSender;

use crate::client::pb::{
    etcdserverpb::{self as pb, compare::TargetUnion, request_op::Request, response_op::Response},
    mvccpb::{Event, KeyValue, event::EventType},
    v3lockpb::LockRequest,
};

/// The keys and leases of one server.
#[derive(Default)]
pub(super) struct Store {
    pub(super) revision: i64,
    keys: BTreeMap<Vec<u8>, KeyValue>,
    /// Their lifetimes in seconds.
    pub(super) leases: BTreeMap<i64, i64>,
    events: Vec<Event>,
    watches: Vec<OpenWatch>,
    /// Whether it reports no events.
    pub(super) is_mute: bool,
}

/// A watch on a stream that this sender belongs to.
struct OpenWatch {
    request: pb::WatchCreateRequest,
    replies: UnboundedSender<Vec<u8>>,
}

impl OpenWatch {
    fn report(&self, events: &[Event], revision: i64) {
        let noput = pb::watch_create_request::FilterType::Noput;
        let is_wanted = |event: &&Event| {
            let kv = event.kv.as_ref();
            kv.is_some_and(|kv| is_in(&kv.key, &self.request.key, &self.request.range_end))
                && !(self.request.filters.contains(&noput.into()) && event.r#type() == EventType::Put)
        };
        let events: Vec<Event> = events.iter().filter(is_wanted).cloned().collect();
        if !events.is_empty() {
            let watch_id = self.request.watch_id;
            let reply = pb::WatchResponse { watch_id, events, ..watch_reply(revision) };
            let _ = self.replies.send(reply.encode_to_vec());
        }
    }
}

fn is_in(key: &[u8], from: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == from,
        [0] => key >= from,
        end => key >= from && key < end,
    }
}

fn watch_reply(revision: i64) -> pb::WatchResponse {
    pb::WatchResponse { header: Some(pb::ResponseHeader { revision }), ..Default::default() }
}

impl Store {
    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader { revision: self.revision })
    }

    /// Returns the keys that begin so.
    pub(super) fn keys(&self, prefix: &str) -> Vec<String> {
        let all = self.keys.keys().map(|key| String::from_utf8_lossy(key).into_owned());
        all.filter(|key| key.starts_with(prefix)).collect()
    }

    pub(super) fn range(&self, request: &pb::RangeRequest) -> pb::RangeResponse {
        let in_range = self.keys.values().filter(|kv| is_in(&kv.key, &request.key, &request.range_end));
        let (min, max) = (request.min_create_revision, request.max_create_revision);
        let mut kvs: Vec<KeyValue> = in_range
            .filter(|kv| kv.create_revision >= min && (max == 0 || kv.create_revision <= max))
            .cloned()
            .collect();
        let count = kvs.len() as i64;
        match request.sort_order() {
            pb::range_request::SortOrder::None => {}
            pb::range_request::SortOrder::Ascend => kvs.sort_by_key(|kv| kv.create_revision),
            pb::range_request::SortOrder::Descend => kvs.sort_by_key(|kv| -kv.create_revision),
        }
        if request.limit > 0 {
            kvs.truncate(usize::try_from(request.limit).unwrap());
        }
        if request.count_only {
            kvs.clear();
        }
        pb::RangeResponse { header: self.header(), kvs, more: false, count }
    }

    /// Executes a transaction; all of its changes have one revision.
    pub(super) fn txn(&mut self, request: &pb::TxnRequest) -> pb::TxnResponse {
        let mut events = Vec::new();
        let response = self.execute(request, &mut events);
        if !events.is_empty() {
            self.revision += 1;
        }
        self.publish(events);
        pb::TxnResponse { header: self.header(), ..response }
    }

    fn execute(&mut self, request: &pb::TxnRequest, events: &mut Vec<Event>) -> pb::TxnResponse {
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let operations = if succeeded { &request.success } else { &request.failure };
        let responses = operations.iter().map(|op| {
            let response = match op.request.as_ref().unwrap() {
                Request::RequestRange(range) => Response::ResponseRange(self.range(range)),
                Request::RequestPut(put) => {
                    events.push(self.put(put));
                    Response::ResponsePut(pb::PutResponse {})
                }
                Request::RequestDeleteRange(delete) => {
                    events.extend(self.delete(&delete.key));
                    Response::ResponseDeleteRange(pb::DeleteRangeResponse {})
                }
                Request::RequestTxn(txn) => Response::ResponseTxn(self.execute(txn, events)),
            };
            pb::ResponseOp { response: Some(response) }
        });
        let responses = responses.collect();
        pb::TxnResponse { header: None, succeeded, responses }
    }

    fn holds(&self, compare: &pb::Compare) -> bool {
        let range = pb::RangeRequest {
            key: compare.key.clone(),
            range_end: compare.range_end.clone(),
            ..Default::default()
        };
        let found = self.range(&range).kvs;
        let found =
            if found.is_empty() && compare.range_end.is_empty() { vec![KeyValue::default()] } else { found };
        found.iter().all(|kv| match compare.target_union.as_ref().unwrap() {
            TargetUnion::CreateRevision(revision) => match compare.result() {
                pb::compare::CompareResult::Greater => kv.create_revision > *revision,
                _ => kv.create_revision == *revision,
            },
            TargetUnion::ModRevision(revision) => kv.mod_revision == *revision,
            TargetUnion::Value(value) => kv.create_revision > 0 && kv.value == *value,
            other => panic!("a compare that no lock sends: {other:?}"),
        })
    }

    fn put(&mut self, put: &pb::PutRequest) -> Event {
        let revision = self.revision + 1;
        let kv = self.keys.entry(put.key.clone()).or_insert_with(|| KeyValue {
            key: put.key.clone(),
            create_revision: revision,
            ..Default::default()
        });
        kv.version += 1;
        kv.mod_revision = revision;
        if !put.ignore_value {
            kv.value.clone_from(&put.value);
        }
        if !put.ignore_lease {
            kv.lease = put.lease;
        }
        Event { r#type: EventType::Put.into(), kv: Some(kv.clone()) }
    }

    fn delete(&mut self, key: &[u8]) -> Option<Event> {
        let key = self.keys.remove(key)?.key;
        let kv = KeyValue { key, mod_revision: self.revision + 1, ..Default::default() };
        Some(Event { r#type: EventType::Delete.into(), kv: Some(kv) })
    }

    /// Deletes a key, as an operator does.
    pub(super) fn remove(&mut self, key: &str) {
        let event = self.delete(key.as_bytes());
        self.revision += 1;
        self.publish(event.into_iter().collect());
    }

    fn publish(&mut self, events: Vec<Event>) {
        for watch in self.watches.iter().filter(|_| !self.is_mute) {
            watch.report(&events, self.revision);
        }
        self.events.extend(events);
    }

    pub(super) fn grant(&mut self, ttl: i64) -> pb::LeaseGrantResponse {
        let id = 0x694d_0000_0000 + self.leases.len() as i64 + self.revision * 1000;
        self.leases.insert(id, ttl);
        pb::LeaseGrantResponse { id, ttl }
    }

    /// Ends a lease and deletes its keys; `false` if it does not exist.
    pub(super) fn revoke(&mut self, id: i64) -> bool {
        let existed = self.leases.remove(&id).is_some();
        for kv in self.keys.values().filter(|kv| kv.lease == id).cloned().collect::<Vec<_>>() {
            self.remove(str::from_utf8(&kv.key).unwrap());
        }
        existed
    }

    pub(super) fn time_to_live(&self, request: &pb::LeaseTimeToLiveRequest) -> pb::LeaseTimeToLiveResponse {
        let of_lease = self.keys.values().filter(|kv| kv.lease == request.id && request.keys);
        let mut response = pb::LeaseTimeToLiveResponse { header: self.header(), ..Default::default() };
        response.ttl = self.leases.get(&request.id).copied().unwrap_or(-1);
        response.keys = of_lease.map(|kv| kv.key.clone()).collect();
        response
    }

    /// Puts the key of a Lock RPC.
    pub(super) fn lock(&mut self, request: &LockRequest) {
        let key = format!("{}/{:x}", String::from_utf8_lossy(&request.name), request.lease).into_bytes();
        let event = self.put(&pb::PutRequest { key, lease: request.lease, ..Default::default() });
        self.revision += 1;
        self.publish(vec![event]);
    }

    /// Opens or cancels a watch; replies on its stream.
    pub(super) fn watch(&mut self, request: pb::WatchRequest, replies: &UnboundedSender<Vec<u8>>) {
        use pb::watch_request::RequestUnion;
        let mut reply = watch_reply(self.revision);
        match request.request_union.unwrap() {
            RequestUnion::CreateRequest(request) => {
                (reply.watch_id, reply.created) = (request.watch_id, true);
                let _ = replies.send(reply.encode_to_vec());
                let watch = OpenWatch { request, replies: replies.clone() };
                let from = watch.request.start_revision;
                let is_later = |event: &&Event| event.kv.as_ref().is_some_and(|kv| kv.mod_revision >= from);
                let missed: Vec<Event> =
                    self.events.iter().filter(|_| from > 0).filter(is_later).cloned().collect();
                watch.report(&missed, self.revision);
                self.watches.push(watch);
            }
            RequestUnion::CancelRequest(cancel) => {
                let is_open = |watch: &OpenWatch| {
                    watch.request.watch_id != cancel.watch_id || !watch.replies.same_channel(replies)
                };
                self.watches.retain(is_open);
                (reply.watch_id, reply.canceled) = (cancel.watch_id, true);
                let _ = replies.send(reply.encode_to_vec());
            }
        }
    }

    /// Ends all streams of watches.
    pub(super) fn end_watches(&mut self) {
        self.watches.clear();
    }
}
