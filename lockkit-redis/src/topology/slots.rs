//! The masters of a cluster, as its nodes report them.
//!
//! The client crate asks for them when a node redirects it or breaks the connection. A master that hangs while its
//! kernel still acknowledges does neither, and the client crate would go on using it for ever.

use std::collections::BTreeSet;

use redis::{
    Value,
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo},
};

use crate::error::RequestError;

/// The masters of all slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotMasters(BTreeSet<SlotRange>);

/// First and last slot, and the id of their master.
type SlotRange = (i64, i64, Vec<u8>);

impl SlotMasters {
    /// Asks all nodes; the first answer counts.
    pub(crate) async fn ask(connection: &mut ClusterConnection) -> Result<Self, RequestError> {
        let first = Some(ResponsePolicy::OneSucceeded);
        let command = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let nodes = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllNodes, first));
        Self::parse(&connection.route_command(command, nodes).await?)
    }

    /// Returns the first slot of each master, in order.
    pub(crate) fn first_slots(&self) -> Vec<u16> {
        let mut masters = BTreeSet::new();
        // In the order of the slots, so the first range of each master counts.
        let first = self.0.iter().filter(|(_, _, id)| masters.insert(id)).map(|(first, ..)| *first);
        first.filter_map(|slot| u16::try_from(slot).ok()).collect()
    }

    /// Parses entries such as `[0, 5460, [host, port, id, []], [the same of a replica]...]`.
    pub(crate) fn parse(answer: &Value) -> Result<Self, RequestError> {
        let Value::Array(entries) = answer else {
            return Err(RequestError::unexpected("slots that are no list"));
        };
        let ranges: Option<_> = entries.iter().map(slot_range).collect();
        ranges.map(Self).ok_or_else(|| RequestError::unexpected("slots of no master"))
    }
}

fn slot_range(entry: &Value) -> Option<SlotRange> {
    let Value::Array(entry) = entry else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &**entry else { return None };
    let Value::BulkString(id) = master.get(2)? else { return None };
    Some((*first, *last, id.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ranges: &[(i64, &str, &[&str])]) -> Value {
        let node = |id: &&str| {
            let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
            Value::Array(vec![text("h"), Value::Int(1), text(id), Value::Array(Vec::new())])
        };
        let ranges = ranges.iter().map(|(first, master, replicas)| {
            let nodes = [master].into_iter().chain(*replicas).map(node);
            Value::Array([Value::Int(*first), Value::Int(first + 9)].into_iter().chain(nodes).collect())
        });
        Value::Array(ranges.collect())
    }

    #[test]
    fn masters_are_compared_without_order_and_replicas() {
        let masters = |ranges: &[_]| SlotMasters::parse(&answer(ranges)).unwrap();
        let known = masters(&[(0, "a", &["b"]), (10, "c", &[])]);
        assert_eq!(known, masters(&[(10, "c", &["d"]), (0, "a", &[])]));
        assert_ne!(known, masters(&[(10, "c", &[]), (0, "b", &[])]));
    }

    #[test]
    fn each_master_has_one_first_slot() {
        let masters =
            SlotMasters::parse(&answer(&[(20, "a", &[]), (0, "a", &["b"]), (10, "c", &[])])).unwrap();
        assert_eq!(masters.first_slots(), [0, 10]);
    }

    #[test]
    fn answer_without_masters_is_refused() {
        let of_nobody = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(9)])]);
        for answer in [Value::Nil, Value::Array(vec![Value::Int(1)]), of_nobody] {
            assert!(SlotMasters::parse(&answer).is_err(), "{answer:?}");
        }
    }
}
