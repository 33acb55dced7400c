//! The scripts of elections and records.

use super::{TTL, answer, counter, node, shared, two, value};
use crate::redlock::raw::{INSPECT, LOOK, MARK, MARKER, NODE};

#[test]
fn proposal_needs_the_lock() {
    let (node, (one, other)) = (shared(), two());
    assert_eq!(one.proclaim(node, 2).unwrap(), 0, "the lock is free");
    one.ask(node, 0).unwrap();
    assert_eq!(one.proclaim(node, 2).unwrap(), 1);
    assert_eq!(other.proclaim(node, 9).unwrap(), 0);
    assert_eq!((one.proposed(node).unwrap(), other.proposed(node).unwrap()), (2, 0));
    one.release(node, "").unwrap();
    assert_eq!(one.proclaim(node, 3).unwrap(), 0);
    assert_eq!(one.proposed(node).unwrap(), 0, "nothing was written after the release");
}

#[test]
fn proposal_keeps_the_ttl_and_the_counter() {
    let (node, (one, other)) = (shared(), two());
    let token = one.ask(node, 0).unwrap();
    one.proclaim(node, 2).unwrap();
    let ttl = node.cli(&["PTTL", &one.lock]).unwrap().number().unwrap();
    assert!((1..=i64::try_from(TTL).unwrap()).contains(&ttl), "{ttl}");
    assert_eq!(one.ask(node, 0).unwrap(), token, "the counter without the proposal");
    assert_eq!(one.write_back(node, token + 5).unwrap(), token + 5);
    assert_eq!(one.restore(node, token).unwrap(), 0, "it is there");
    one.release(node, "released").unwrap();
    assert_eq!(other.ask(node, 0).unwrap(), token + 6);
    assert_eq!(counter(node, &one), token + 6, "without the proposal of the earlier claim");
}

#[test]
fn late_copies_do_not_undo_a_proposal() {
    let (node, (one, other)) = (shared(), two());
    let token = one.ask(node, 0).unwrap();
    one.proclaim(node, 5).unwrap();
    assert_eq!(one.proclaim(node, 4).unwrap(), 1);
    assert_eq!(one.proposed(node).unwrap(), 5, "of another proclaim");
    one.write_back(node, token).unwrap();
    node.cli(&["DEL", &one.lock]).unwrap();
    assert_eq!(one.restore_with(node, token, 4).unwrap(), 0, "of a restore");
    assert_eq!(one.ask(node, 0).unwrap(), 0, "of an ask");
    assert_eq!((value(node, &one), other.restore(node, token - 1).unwrap()), (String::new(), 0));
    assert_eq!(one.restore_with(node, token, 6).unwrap(), token);
    assert_eq!(one.proposed(node).unwrap(), 6);
    assert_eq!(one.proclaim(node, 5).unwrap(), 1);
    assert_eq!(one.proposed(node).unwrap(), 6, "the restore brought a later one");
    node.cli(&["SET", &one.lock, &format!("{}{{junk", one.claim), "KEEPTTL"]).unwrap();
    assert_eq!(one.proclaim(node, 7).unwrap(), 1);
    assert_eq!(one.proposed(node).unwrap(), 7, "junk is replaced");
}

/// It comes from a claim that had the lock before.
#[test]
fn late_release_or_break_keeps_the_proposal_of_the_next_leader() {
    let (node, (one, other)) = (shared(), two());
    let token = one.ask(node, 0).unwrap();
    one.release(node, "").unwrap();
    other.ask(node, 0).unwrap();
    other.proclaim(node, 5).unwrap();
    for late in [one.release_restored(node, token).unwrap(), one.break_hold(node, token).unwrap()] {
        assert_eq!((late, other.proclaim(node, 4).unwrap()), (0, 1));
        assert_eq!(other.proposed(node).unwrap(), 5);
    }
}

#[test]
fn inspection_returns_the_longest_metadata_and_no_longer_ones() {
    let (node, (one, _)) = (shared(), two());
    for (bytes, returned) in [(1_000, 1_000), (1_001, 0)] {
        let value = format!("{}{{{}", one.claim, "x".repeat(bytes - 1));
        node.cli(&["SET", &one.lock, &value]).unwrap();
        let keys = ["EVAL", *INSPECT, "3", &one.lock, &one.side("fence"), NODE];
        let reply = node.cli(&[&keys[..], &["1000", "", MARKER]].concat()).unwrap();
        let metadata = reply.list()[2].text();
        assert_eq!((metadata.len(), reply.list()[3].number()), (returned, Some(1)), "{bytes}");
    }
}

#[test]
fn record_needs_the_lock_and_no_later_record() {
    let (node, (one, other)) = (shared(), two());
    let record = || one.read_record(node).unwrap().unwrap();
    assert_eq!(one.write_record(node, 7, 1, "a").unwrap(), 0, "the lock is free");
    let token = one.ask(node, 7).unwrap();
    assert_eq!(record(), answer("", 0));
    assert_eq!(one.write_record(node, token, 2, "b:c").unwrap(), 1);
    assert_eq!(record(), (format!("{token}:2:b:c"), 0));
    assert!(node.cli(&["PTTL", &one.side("record")]).unwrap().number().unwrap() > 0);
    assert_eq!(one.write_record(node, token, 1, "a").unwrap(), 1, "a late copy");
    assert_eq!(other.write_record(node, token + 1, 1, "x").unwrap(), 0);
    one.release(node, "released").unwrap();
    assert_eq!(one.write_record(node, token, 3, "d").unwrap(), 0);
    assert_eq!(record(), (format!("{token}:2:b:c"), 0));
    let next = other.ask(node, 0).unwrap();
    assert_eq!(other.write_record(node, next, 1, "e").unwrap(), 1);
    assert_eq!(other.write_record(node, next - 1, 9, "f").unwrap(), 0, "a lower token");
    assert_eq!(record(), (format!("{next}:1:e"), 0));
}

#[test]
fn node_notes_which_records_it_may_have_lost_and_until_when() {
    let (node, (one, _)) = (node(), two());
    one.ask(&node, 0).unwrap();
    one.write_record(&node, 5, 1, "a").unwrap();
    let look = || node.cli(&["EVAL", *LOOK, "1", NODE]).unwrap().list()[3].number().unwrap();
    let last = look();
    assert!((1..=50_000_000).contains(&last), "{last}");
    // Another one is kept for longer.
    node.cli(&["HINCRBY", NODE, "records_until", "3600000000"]).unwrap();
    one.write_record(&node, 5, 2, "b").unwrap();
    assert!(look() > 50_000_000, "{last}");
    node.cli(&["FLUSHALL"]).unwrap();
    assert_eq!((look(), one.read_record(&node).unwrap()), (0, None));
    let mark = |records_last: &str| {
        node.cli(&["HDEL", NODE, "marker"]).unwrap();
        node.cli(&["EVAL", *MARK, "1", NODE, "", "70", "a:1", records_last, MARKER]).unwrap();
    };
    mark("0");
    assert_eq!(one.read_record(&node).unwrap(), Some(answer("", 0)), "no records were written");
    mark("40000000");
    assert_eq!(one.read_record(&node).unwrap(), Some(answer("", 70)));
    assert!((1..=40_000_000).contains(&look()), "the next node that is emptied learns of it");
    node.cli(&["HSET", NODE, "lost_until", "1"]).unwrap();
    assert_eq!(one.read_record(&node).unwrap(), Some(answer("", 0)), "they have expired");
}
