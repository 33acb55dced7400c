//! What scripts publish to the observers of a leader, and how long they keep what observers are shown.

use lockkit_testbed::Redis;

use crate::{
    common::{fresh_name, shared, side},
    raw::{ACQUIRE, CONFIRM, Claimant, RELEASE, add_lapsed_waiters, claim_state},
};

/// The channel of observers.
const OBSERVERS: &str = "lockkit:leader:{x}";

/// The short way finds a queue.
#[test]
fn grant_to_a_candidate_behind_lapsed_waiters_is_published() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    add_lapsed_waiters(&redis, &name, 2);
    let answer = Claimant::new(&redis, &name).run(*ACQUIRE, &["c0ffee", "wait", "{}", OBSERVERS]);
    assert_eq!(claim_state(&answer).0, "granted");
    assert_eq!(redis.calls("publish").unwrap(), 1);
}

#[test]
fn grant_by_the_withdrawal_of_a_candidate_is_published() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let [holder, next, candidate] = [(); 3].map(|()| Claimant::new(&redis, &name));
    for claimant in [&holder, &next, &candidate] {
        claimant.acquire();
    }
    // As if it had expired.
    redis.cli(&["DEL", name.as_str()]).unwrap();
    candidate.run(*RELEASE, &[OBSERVERS]);
    assert_eq!(redis.calls("publish").unwrap(), 2, "to the client of the next one, and to observers");
    assert_eq!(next.confirm().0, "granted");
}

/// The lock may have been handed over by a script that names no observers, of another claim.
#[test]
fn confirm_of_a_new_leader_is_published() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let [dead, next] = [(); 2].map(|()| Claimant::new(&redis, &name));
    for claimant in [&dead, &next] {
        claimant.acquire();
    }
    redis.cli(&["DEL", name.as_str()]).unwrap();
    let before = redis.calls("publish").unwrap();
    assert_eq!(claim_state(&next.run(*CONFIRM, &["c0ffee", OBSERVERS])).0, "granted");
    assert_eq!(redis.calls("publish").unwrap(), before + 1);
}

/// Candidates confirm now and then while they lead.
#[test]
fn confirm_of_a_leader_extends_the_lifetime_of_its_metadata() {
    let (redis, name) = (shared(), fresh_name());
    let (leader, counter) = (Claimant::new(redis, &name), side(&name, "fence"));
    leader.acquire();
    for (arguments, extends) in [(&["c0ffee"][..], false), (&["c0ffee", OBSERVERS], true)] {
        redis.cli(&["PEXPIRE", &counter, "50000"]).unwrap();
        assert_eq!(claim_state(&leader.run(*CONFIRM, arguments)).0, "granted");
        let left = redis.cli(&["PTTL", &counter]).unwrap().number();
        assert_eq!(left > Some(100_000), extends, "{left:?}");
    }
}
