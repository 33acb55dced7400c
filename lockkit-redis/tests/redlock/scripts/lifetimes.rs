//! How long the keys of a lock live at a node after each script: for the time that was asked for, and no longer.

use lockkit_testbed::Redis;

use super::{TTL, counter, name, node, set_counter, shared, two};
use crate::redlock::raw::{Claimant, KEEP_MS, MARK, MARKER, NODE, RECORD_KEEP_MS};

/// The most that a busy machine delays the look at a key, in ms.
const DELAY_MAX: i64 = 30_000;

/// How long a key lives after it was checked, in ms: less than any script asks for, even after [`DELAY_MAX`].
const SHORTENED: &str = "10000";

/// Checks how long a key lives; then it lives for [`SHORTENED`], unless a later script extends it.
#[track_caller]
fn assert_lives(node: &Redis, key: &str, asked: &str) {
    let (left, asked) = (node.cli(&["PTTL", key]).unwrap().number().unwrap(), asked.parse::<i64>().unwrap());
    assert!((asked - DELAY_MAX..=asked).contains(&left), "{key}: {left} ms instead of {asked} ms");
    node.cli(&["PEXPIRE", key, SHORTENED]).unwrap();
}

#[test]
fn keys_live_for_the_time_that_each_request_asks_for() {
    let (node, (one, other), ttl) = (shared(), two(), TTL.to_string());
    let (lock, counter_key) = (&*one.lock, &*one.side("fence"));
    let assert_both_live = || {
        assert_lives(node, lock, &ttl);
        assert_lives(node, counter_key, KEEP_MS);
    };
    let token = one.ask(node, 1_000).unwrap();
    assert_both_live();
    one.renew(node).unwrap();
    assert_both_live();
    one.write_back(node, token + 5).unwrap();
    assert_lives(node, counter_key, KEEP_MS);
    one.proclaim(node, 2).unwrap();
    assert_lives(node, counter_key, KEEP_MS);
    let left = node.cli(&["PTTL", lock]).unwrap().number().unwrap();
    assert!((1..=SHORTENED.parse().unwrap()).contains(&left), "only a heartbeat extends the lock: {left} ms");
    one.release_restored(node, token + 5).unwrap();
    assert_lives(node, counter_key, KEEP_MS);
    // Its counter is above this proposal.
    let token = other.ask(node, 1).unwrap();
    assert_both_live();
    node.cli(&["DEL", lock]).unwrap();
    assert_eq!(other.restore(node, token).unwrap(), token);
    assert_both_live();
    assert_eq!(other.write_record(node, token, 1, "a").unwrap(), 1);
    assert_lives(node, &other.side("record"), RECORD_KEEP_MS);
}

/// The highest counters, and a floor that was taken when they were lower.
fn set_floor(node: &Redis, highest: &str, taken_in_us: &str) {
    const SET: &str = "local time = redis.call('TIME')
        local at = string.format('%.0f', time[1] * 1000000 + time[2] + ARGV[2])
        redis.call('HSET', KEYS[1], 'highest', ARGV[1], 'floor', '5', 'floor_at', at)";
    node.cli(&["EVAL", SET, "1", NODE, highest, taken_in_us]).unwrap();
}

/// A counter that the node has dropped may be as high as the highest one.
#[test]
fn floor_that_was_taken_in_the_future_is_taken_again() {
    let (node, (one, _)) = (node(), two());
    set_floor(&node, "9000", "3600000000");
    assert_eq!(one.ask(&node, 0).unwrap(), 9_001);
}

/// A counter may be kept for a second only.
#[test]
fn floor_is_taken_again_before_any_counter_expires() {
    let (node, (one, _)) = (node(), two());
    set_floor(&node, "9000", "-600000");
    assert_eq!(one.ask(&node, 0).unwrap(), 9_001);
}

/// It has lost its marker alone.
#[test]
fn node_that_comes_back_keeps_a_higher_counter_of_its_own() {
    let (node, one) = (node(), Claimant::new(&name(), TTL));
    set_floor(&node, "90", "0");
    let reply = node.cli(&["EVAL", *MARK, "1", NODE, MARKER, "70", "a:1", "0", MARKER]).unwrap();
    assert_eq!(reply.list()[1].number(), Some(90));
    assert_eq!(one.ask(&node, 0).unwrap(), 91);
}

#[test]
fn node_that_comes_back_takes_its_floor_again() {
    let (node, one) = (node(), Claimant::new(&name(), TTL));
    set_floor(&node, "7", "0");
    let reply = node.cli(&["EVAL", *MARK, "1", NODE, MARKER, "70", "a:1", "0", MARKER]).unwrap();
    assert_eq!(reply.list()[1].number(), Some(70));
    assert_eq!(one.ask(&node, 0).unwrap(), 71);
}

/// The highest counter is what later counters of the node must be above once its own are dropped.
#[test]
fn every_script_that_raises_a_counter_notes_the_highest() {
    let (node, (one, other)) = (node(), two());
    let assert_noted = |what: &str| {
        let highest = node.cli(&["HGET", NODE, "highest"]).unwrap();
        assert_eq!(highest.text(), counter(&node, &one).to_string(), "{what}");
    };
    let token = one.ask(&node, 1_000).unwrap();
    assert_noted("an ask");
    one.release(&node, "").unwrap();
    // Here the short way takes the proposal.
    let token = one.ask(&node, token.unsigned_abs() + 1_000).unwrap();
    assert_noted("an ask at a known counter");
    one.write_back(&node, token + 5).unwrap();
    assert_noted("a write-back");
    one.release_restored(&node, token + 5).unwrap();
    assert_noted("a release after a restore");
    set_counter(&node, &one, 1);
    assert_eq!(other.restore(&node, token + 100).unwrap(), token + 100);
    assert_noted("a restore");
}
