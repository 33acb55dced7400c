//! Each script in each state of a node: its reply and what it leaves. Exactly the files that the backend sends.

mod hints;
mod lifetimes;
mod powers;

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

use lockkit_core::LockName;
use lockkit_testbed::Redis;

use crate::redlock::raw::{Claimant, MARK, MARKER, NODE, NOTE_EMPTY};

/// Longer than any test, in milliseconds.
const TTL: u64 = 60_000;

fn node() -> Redis {
    let node = Redis::start().unwrap();
    node.cli(&["HSET", NODE, "marker", MARKER]).unwrap();
    node
}

/// A node that is set up and that no test empties.
fn shared() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(node)
}

fn name() -> LockName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    LockName::new(format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap()
}

/// Two claims to one lock.
fn two() -> (Claimant, Claimant) {
    let name = name();
    (Claimant::new(&name, TTL), Claimant::new(&name, TTL))
}

fn answer(text: &str, number: i64) -> (String, i64) {
    (text.to_owned(), number)
}

/// The counter of the claimant's lock; 0 for none.
fn counter(node: &Redis, of: &Claimant) -> i64 {
    let text = node.cli(&["GET", &of.side("fence")]).unwrap();
    text.text().split(' ').next().unwrap().parse().unwrap_or(0)
}

fn set_counter(node: &Redis, of: &Claimant, counter: i64) {
    node.cli(&["SET", &of.side("fence"), &counter.to_string()]).unwrap();
}

fn value(node: &Redis, of: &Claimant) -> String {
    node.cli(&["GET", &of.lock]).unwrap().text().to_owned()
}

/// Whose claim has the lock.
fn owner(node: &Redis, of: &Claimant) -> String {
    value(node, of).split('{').next().unwrap().to_owned()
}

#[test]
fn free_node_grants_with_the_higher_of_counter_and_proposal() {
    let (node, (one, other)) = (node(), two());
    assert_eq!(one.ask(&node, 1_000).unwrap(), 1_000);
    assert!(value(&node, &one).starts_with(&format!("{}{{", one.claim)), "the start of the value");
    assert!(node.cli(&["PTTL", &one.lock]).unwrap().number().unwrap() > 0);
    assert_eq!(one.release(&node, "").unwrap(), 1);
    assert_eq!(other.ask(&node, 5).unwrap(), 1_001, "the counter is higher");
    assert_eq!(counter(&node, &one), 1_001);
    assert_eq!(other.release(&node, "").unwrap(), 1);
    assert_eq!(one.ask(&node, 1_001).unwrap(), 1_002, "no counter is granted twice");
}

#[test]
fn repeated_ask_returns_the_first_reply() {
    let (node, (one, _)) = (shared(), two());
    let first = one.ask(node, 7).unwrap();
    assert_eq!(one.ask(node, u64::MAX >> 12).unwrap(), first);
    assert_eq!(counter(node, &one), first);
}

#[test]
fn held_lock_is_busy_for_others_and_unchanged() {
    let (node, (one, other)) = (shared(), two());
    let held = one.ask(node, 0).unwrap();
    assert_eq!(other.ask(node, 0).unwrap(), 0);
    assert_eq!((owner(node, &one), counter(node, &one)), (one.claim.clone(), held));
    assert_eq!(other.write_back(node, held + 5).unwrap(), 0, "not the owner");
    assert_eq!(counter(node, &one), held);
}

#[test]
fn write_back_needs_the_key_and_no_higher_counter() {
    let (node, (one, other)) = (shared(), two());
    let held = one.ask(node, 100).unwrap();
    assert_eq!(one.write_back(node, held - 1).unwrap(), 0);
    assert_eq!(one.write_back(node, held).unwrap(), held);
    assert_eq!(one.write_back(node, held + 9).unwrap(), held + 9);
    assert_eq!(counter(node, &one), held + 9);
    one.release(node, "").unwrap();
    assert_eq!(one.write_back(node, held + 20).unwrap(), 0, "the key is gone");
    let next = other.ask(node, 0).unwrap();
    assert!(next > held + 9, "{next}");
}

#[test]
fn release_removes_the_lock_of_its_claim_only() {
    let (node, (one, other)) = (shared(), two());
    let token = one.ask(node, 0).unwrap();
    assert_eq!(other.release(node, "released").unwrap(), 0);
    assert_eq!((owner(node, &one), counter(node, &one)), (one.claim.clone(), token));
    assert_eq!(one.release(node, "released").unwrap(), 1);
    assert_eq!(one.release(node, "released").unwrap(), 0);
    assert_eq!(counter(node, &one), token);
    assert_eq!(node.keys(&format!("*{}*", one.lock)).unwrap(), [one.side("fence")]);
}

#[test]
fn release_after_a_restore_raises_the_counter_above_its_token() {
    let (node, (one, other)) = (shared(), two());
    let token = one.ask(node, 0).unwrap();
    assert_eq!(one.release_restored(node, token).unwrap(), 1);
    assert_eq!(counter(node, &one), token + 1, "the lock is free");
    let next = other.ask(node, 0).unwrap();
    assert_eq!(one.release_restored(node, token + 100).unwrap(), 0);
    assert_eq!(counter(node, &one), token + 101, "another has it");
    assert_eq!(owner(node, &one), other.claim, "and keeps it");
    assert!(next < token + 101);
    assert_eq!(one.release_restored(node, token).unwrap(), 0);
    assert_eq!(counter(node, &one), token + 101, "a counter never falls");
}

/// A node that the operator has not seen may have a higher one.
#[test]
fn break_lowers_no_counter() {
    let (node, (one, other)) = (shared(), two());
    let token = one.ask(node, 0).unwrap();
    assert_eq!(one.break_hold(node, token).unwrap(), 1);
    assert_eq!((value(node, &one), counter(node, &one)), (String::new(), token + 1));
    let next = other.ask(node, 0).unwrap();
    assert_eq!(one.break_hold(node, token).unwrap(), 0, "another has it");
    assert_eq!((owner(node, &one), counter(node, &one)), (other.claim, next));
}

/// It may have been granted after the operator had seen the lock of another program.
#[test]
fn break_of_another_program_ends_no_hold() {
    let (node, (one, mut nobody)) = (shared(), two());
    nobody.claim.clear();
    one.ask(node, 0).unwrap();
    assert_eq!(nobody.break_hold(node, 0).unwrap(), 0);
    assert_eq!(owner(node, &one), one.claim);
    for (value, is_broken) in [("f00d", 0), ("another", 1)] {
        node.cli(&["SET", &one.lock, value]).unwrap();
        assert_eq!(nobody.break_hold(node, 0).unwrap(), is_broken, "{value}");
    }
}

#[test]
fn restore_needs_that_no_other_claim_had_the_lock() {
    let (node, (one, other)) = (shared(), two());
    let token = one.ask(node, 0).unwrap();
    assert_eq!(one.restore(node, token).unwrap(), 0, "it is there");
    node.cli(&["DEL", &one.lock]).unwrap();
    set_counter(node, &one, token - 1);
    assert_eq!(one.restore(node, token).unwrap(), token);
    assert_eq!((owner(node, &one), counter(node, &one)), (one.claim.clone(), token));
    assert!(node.cli(&["PTTL", &one.lock]).unwrap().number().unwrap() > 0);
    node.cli(&["DEL", &one.lock]).unwrap();
    other.ask(node, 0).unwrap();
    assert_eq!(one.restore(node, token).unwrap(), 0, "another has it");
    other.release(node, "").unwrap();
    assert_eq!(one.restore(node, token).unwrap(), 0, "another had it");
    assert_eq!(value(node, &one), "");
}

#[test]
fn restore_after_the_release_is_refused() {
    let (node, (one, _)) = (shared(), two());
    let token = one.ask(node, 0).unwrap();
    one.release_restored(node, token).unwrap();
    assert_eq!(one.restore(node, token).unwrap(), 0);
    assert_eq!(value(node, &one), "");
}

#[test]
fn heartbeat_extends_keys_and_creates_none() {
    let (node, (one, other)) = (shared(), two());
    assert_eq!(one.renew(node).unwrap(), Some(-1));
    one.ask(node, 0).unwrap();
    node.cli(&["PEXPIRE", &one.lock, "20000"]).unwrap();
    assert_eq!(one.renew(node).unwrap(), Some(1));
    assert!(node.cli(&["PTTL", &one.lock]).unwrap().number().unwrap() > 20_000);
    assert_eq!(other.renew(node).unwrap(), Some(0));
    node.cli(&["DEL", &one.lock]).unwrap();
    assert_eq!(one.renew(node).unwrap(), Some(-1));
    assert_eq!(value(node, &one), "");
}

#[test]
fn lock_and_counter_expire_and_heartbeats_extend_them() {
    let (node, (one, _)) = (shared(), two());
    let ttl = |key: &str| node.cli(&["PTTL", key]).unwrap().number().unwrap();
    one.ask(node, 0).unwrap();
    for key in [&one.lock, &one.side("fence")] {
        assert!(ttl(key) > 0, "{key} has no ttl");
    }
    let counter_key = one.side("fence");
    node.cli(&["PEXPIRE", &counter_key, "20000"]).unwrap();
    one.renew(node).unwrap();
    assert!(ttl(&counter_key) > 60_000);
}

#[test]
fn node_without_its_marker_does_not_count() {
    let (node, (one, other)) = (node(), two());
    let token = one.ask(&node, 0).unwrap();
    assert_eq!(one.inspect(&node).unwrap(), Some((one.claim.clone(), token)));
    for marker in [
        "",
        "preparing 60000 5f0c1d2e3b4a5968 1/3",
        "ready 90000 5f0c1d2e3b4a5968 1/3",
        "ready 60000 0000000000000000 1/3",
        "ready 60000 5f0c1d2e3b4a5968 2/3",
        "ready 60000 5f0c1d2e3b4a5968 1/5",
        "empty 0",
    ] {
        node.cli(&["HSET", NODE, "marker", marker]).unwrap();
        assert_eq!(other.ask(&node, 0).unwrap(), -1, "{marker}");
        assert_eq!(one.ask(&node, 0).unwrap(), -1, "{marker}: not even to the owner");
        assert_eq!(one.write_back(&node, token).unwrap(), -1, "{marker}");
        assert_eq!(one.restore(&node, token).unwrap(), -1, "{marker}");
        assert_eq!(one.break_hold(&node, token).unwrap(), -1, "{marker}");
        assert_eq!(one.proclaim(&node, 2).unwrap(), -1, "{marker}");
        assert_eq!(one.write_record(&node, token, 1, "a").unwrap(), -1, "{marker}");
        assert_eq!(one.read_record(&node).unwrap(), None, "{marker}");
        assert_eq!(one.inspect(&node).unwrap(), None, "{marker}");
        assert_eq!(one.renew(&node).unwrap(), None, "{marker}");
    }
    assert_eq!(one.release_restored(&node, token).unwrap(), 1, "its own key is removed anyway");
    assert_eq!(counter(&node, &one), token, "but its counter is not raised");
    node.cli(&["FLUSHALL"]).unwrap();
    assert_eq!(one.ask(&node, 0).unwrap(), -1);
    assert!(node.keys("*").unwrap().is_empty(), "nothing was written");
}

#[test]
fn expired_counter_starts_again_above_the_highest() {
    let (node, (one, other)) = (node(), two());
    let elsewhere = Claimant::new(&name(), TTL);
    for proposal in [8_000, 9_000] {
        one.ask(&node, proposal).unwrap();
        one.release(&node, "").unwrap();
    }
    elsewhere.ask(&node, 500).unwrap();
    // As if the counter had expired.
    node.cli(&["DEL", &one.side("fence")]).unwrap();
    node.cli(&["HSET", NODE, "floor_at", "1"]).unwrap();
    assert_eq!(other.ask(&node, 0).unwrap(), 9_001);
}

#[test]
fn new_lock_gets_the_proposed_counter_although_others_are_slightly_higher() {
    /// The floor is this old at most, in us.
    const FLOOR_US_MAX: i64 = 500_000;
    let clock = |node: &Redis| {
        let time = node.cli(&["TIME"]).unwrap();
        let part = |nth: usize| time.list()[nth].text().parse::<i64>().unwrap();
        part(0) * 1_000_000 + part(1)
    };
    // Again on a busy machine, until nothing between the first ask and the last one took too long.
    let (mut took, mut counter) = (FLOOR_US_MAX, 0);
    while took >= FLOOR_US_MAX {
        let node = node();
        let [one, other, late] = [0; 3].map(|_| Claimant::new(&name(), TTL));
        let start = clock(&node);
        one.ask(&node, 9_000).unwrap();
        other.ask(&node, 9_500).unwrap();
        counter = late.ask(&node, 9_400).unwrap();
        took = clock(&node) - start;
    }
    assert_eq!(counter, 9_400);
}

#[test]
fn foreign_values_are_busy_for_all() {
    let (node, (one, _)) = (shared(), two());
    let junk: [&[&str]; 6] = [
        &["SET", &one.lock, "another"],
        &["SET", &one.lock, ""],
        &["SET", &one.lock, &one.claim],
        &["SET", &one.lock, "{}"],
        &["RPUSH", &one.lock, "a"],
        &["HSET", &one.lock, "a", "b"],
    ];
    for words in junk {
        node.cli(&["DEL", &one.lock]).unwrap();
        node.cli(words).unwrap();
        assert_eq!(one.ask(node, 0).unwrap(), 0, "{words:?}");
        assert_eq!(one.renew(node).unwrap(), Some(0), "{words:?}");
        assert_eq!(one.release(node, "").unwrap(), 0, "{words:?}");
    }
}

#[test]
fn foreign_values_are_no_counters() {
    let (node, (one, _)) = (node(), two());
    // Higher each time: the floor may have been taken since the last grant.
    let mut proposal: i64 = 8_000_000_000_000_000;
    for words in [["SET", "many"], ["SET", "-5"], ["SET", "1e300"], ["RPUSH", "a"]] {
        proposal += 1_000;
        node.cli(&["DEL", &one.side("fence"), &one.lock]).unwrap();
        node.cli(&[words[0], &one.side("fence"), words[1]]).unwrap();
        assert_eq!(one.ask(&node, proposal.unsigned_abs()).unwrap(), proposal, "{words:?}");
    }
}

/// It does not show that another claim has the lock: a release would be confirmed, and the lock kept.
#[test]
fn read_that_is_denied_is_an_error() {
    let (node, (one, _)) = (node(), two());
    one.ask(&node, 0).unwrap();
    node.cli(&["ACL", "SETUSER", "default", "-getrange"]).unwrap();
    let renewed = one.renew(&node).map(Option::unwrap_or_default);
    let answers = [one.release(&node, ""), one.ask(&node, 0), renewed];
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
}

#[test]
fn counters_are_exact_up_to_the_maximum_of_lua() {
    let (node, (one, _)) = (node(), two());
    set_counter(&node, &one, 9_007_199_254_740_000);
    assert_eq!(one.ask(&node, 0).unwrap(), 9_007_199_254_740_001);
    assert_eq!(counter(&node, &one), 9_007_199_254_740_001);
}

/// Lua cannot represent the counters above it.
#[test]
fn proposal_of_a_clock_at_the_maximum_is_ignored() {
    let (node, (one, other)) = (node(), two());
    for known in [None, Some(100)] {
        known.into_iter().for_each(|known| set_counter(&node, &one, known));
        let first = one.ask(&node, (1 << 53) - 1).unwrap();
        assert!((1..=101).contains(&first), "{first}");
        one.release(&node, "").unwrap();
        let next = other.ask(&node, 50).unwrap();
        assert!(next > first, "{next} after {first}");
        other.release(&node, "").unwrap();
    }
}

#[test]
fn emptied_node_is_marked_only_if_its_note_is_unchanged() {
    let node = Redis::start().unwrap();
    let note = |text: &str| node.cli(&["EVAL", *NOTE_EMPTY, "1", NODE, text]).unwrap();
    let mark = |to: &str, from: &str, highest: &str| {
        let reply = node.cli(&["EVAL", *MARK, "1", NODE, from, highest, "a:1\nb:1\nc:1", "0", to]).unwrap();
        (reply.list()[0].text().to_owned(), reply.list()[1].number().unwrap())
    };
    assert_eq!(note("empty a").list()[0].text(), "empty a");
    assert_eq!(note("empty b").list()[0].text(), "empty a", "the first note stays");
    assert_eq!(mark(MARKER, "empty b", "70"), answer("empty a", 0), "another note");
    assert_eq!(mark(MARKER, "empty a", "70"), answer(MARKER, 70));
    assert_eq!(mark(MARKER, "empty a", "90"), answer(MARKER, 70), "it counts already");
    assert_eq!(note("empty c").list()[0].text(), MARKER);
    assert_eq!(note("empty c").list()[2].text(), "a:1\nb:1\nc:1");
    let one = Claimant::new(&name(), TTL);
    assert_eq!(one.ask(&node, 0).unwrap(), 71);
}
