//! What each script costs a node: commands by the node's own statistics, keys, and bytes. Exact numbers, no times.

use std::collections::BTreeMap;

use lockkit_core::LockName;
use lockkit_testbed::Redis;

use crate::redlock::raw::{Claimant, MARKER, NODE};

/// Longer than any test, in milliseconds.
const TTL: u64 = 60_000;

fn node() -> Redis {
    let node = Redis::start().unwrap();
    node.cli(&["HSET", NODE, "marker", MARKER]).unwrap();
    node
}

fn two() -> (Claimant, Claimant) {
    let name = LockName::new("orders/42").unwrap();
    (Claimant::new(&name, TTL), Claimant::new(&name, TTL))
}

/// How often each command was executed inside a script.
fn commands(node: &Redis) -> BTreeMap<String, u64> {
    let stats = node.cli(&["INFO", "commandstats"]).unwrap();
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let count = rest.split(',').next()?.parse().ok()?;
        (!matches!(name, "eval" | "info")).then(|| (name.to_owned(), count))
    };
    stats.text().lines().filter_map(line).collect()
}

/// The commands of one script, in the order of their names.
fn cost(node: &Redis, script: impl FnOnce()) -> String {
    let before = commands(node);
    script();
    let all = commands(node).into_iter().map(|(name, count)| {
        let count = count - before.get(&name).copied().unwrap_or(0);
        std::iter::repeat_n(name, usize::try_from(count).unwrap()).collect::<Vec<_>>()
    });
    all.flatten().collect::<Vec<_>>().join(" ")
}

#[test]
fn scripts_need_few_commands() {
    let (node, (one, other)) = (node(), two());
    // The clock of a client rises. The first lock of a node also sets the floor.
    let new = cost(&node, || assert_eq!(one.ask(&node, 1_000).unwrap(), 1_000));
    assert_eq!(new, "get get hmget hmget hset hset set set time", "a lock that is new here");
    assert_eq!(cost(&node, || assert_eq!(other.ask(&node, 2_000).unwrap(), 0)), "getrange hmget set", "busy");
    let written = cost(&node, || assert_eq!(one.write_back(&node, 1_500).unwrap(), 1_500));
    assert_eq!(written, "get getrange hmget hset set");
    let renewed = cost(&node, || assert_eq!(one.renew(&node).unwrap(), Some(1)));
    assert_eq!(renewed, "getrange hget pexpire pexpire");
    let cleaned = cost(&node, || assert_eq!(other.release(&node, "").unwrap(), 0));
    assert_eq!(cleaned, "getrange", "a clean-up where the claim has nothing");
    let released = cost(&node, || assert_eq!(one.release(&node, "released").unwrap(), 1));
    assert_eq!(released, "del getrange pubsub|numsub");
    let taken = cost(&node, || assert_eq!(other.ask(&node, 3_000).unwrap(), 3_000));
    assert_eq!(taken, "get hmget hset set set");
    assert_eq!(cost(&node, || assert_eq!(other.release(&node, "").unwrap(), 1)), "del getrange");
}

#[test]
fn held_lock_is_two_small_keys() {
    let (node, (one, _)) = (node(), two());
    let empty = node.keys("*").unwrap();
    one.ask(&node, 1_700_000_000_000_000).unwrap();
    let mut keys = node.keys("*").unwrap();
    keys.retain(|key| !empty.contains(key));
    keys.sort_unstable();
    let mut expected = [one.side("fence"), one.lock.clone()];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    let bytes: i64 =
        keys.iter().map(|key| node.cli(&["MEMORY", "USAGE", key]).unwrap().number().unwrap()).sum();
    assert!(bytes <= 450, "{bytes} bytes");
    one.release(&node, "released").unwrap();
    assert_eq!(node.keys("*").unwrap().len(), empty.len() + 1, "the counter stays");
}
