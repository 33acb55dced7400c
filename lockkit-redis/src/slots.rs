//! Which masters a cluster has, as its nodes tell.
//!
//! The client crate asks for them when a node sends it elsewhere, or breaks the connection. A master that hangs, while
//! its kernel goes on acknowledging, does neither, and would be asked for ever.

use std::collections::BTreeSet;

use redis::{
    Value,
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo},
};

use crate::error::Fault;

/// The masters of all slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Masters(BTreeSet<Range>);

/// First and last slot, and what the master calls itself.
type Range = (i64, i64, Vec<u8>);

impl Masters {
    /// As the node tells that answers first.
    pub(crate) async fn ask(connection: &mut ClusterConnection) -> Result<Self, Fault> {
        let first = Some(ResponsePolicy::OneSucceeded);
        let command = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let nodes = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllNodes, first));
        Self::parse(&connection.route_command(command, nodes).await?)
    }

    /// From entries such as `[0, 5460, [host, port, id, []], [the same of a replica]...]`.
    pub(crate) fn parse(answer: &Value) -> Result<Self, Fault> {
        let Value::Array(entries) = answer else { return Err(Fault::nonsense("slots that are no list")) };
        let ranges: Option<_> = entries.iter().map(range).collect();
        ranges.map(Self).ok_or_else(|| Fault::nonsense("slots of no master"))
    }
}

fn range(entry: &Value) -> Option<Range> {
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
    fn masters_are_compared_in_any_order_and_without_their_replicas() {
        let masters = |ranges: &[_]| Masters::parse(&answer(ranges)).unwrap();
        let known = masters(&[(0, "a", &["b"]), (10, "c", &[])]);
        assert_eq!(known, masters(&[(10, "c", &["d"]), (0, "a", &[])]));
        assert_ne!(known, masters(&[(10, "c", &[]), (0, "b", &[])]));
    }

    #[test]
    fn what_tells_no_masters_is_refused() {
        let of_nobody = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(9)])]);
        for answer in [Value::Nil, Value::Array(vec![Value::Int(1)]), of_nobody] {
            assert!(Masters::parse(&answer).is_err(), "{answer:?}");
        }
    }
}
