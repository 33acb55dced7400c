//! Each script in each state of a lock: its answer, and the keys that it leaves.

use lockkit_core::LockName;
use lockkit_testbed::{Redis, Reply};

use crate::{
    common::{assert_rising, fresh_name, shared, side},
    raw::{ACQUIRE, CONFIRM, Claimant, RELEASE, RENEW, claim_state, heartbeat, remaining_keys},
};

#[test]
fn a_free_lock_is_granted_and_a_repeated_acquire_finds_it() {
    let (redis, name) = (shared(), fresh_name());
    let one = Claimant::new(redis, &name);
    let token = Claimant::token(one.acquire());
    assert_eq!(redis.cli(&["GET", name.as_str()]).unwrap().text(), format!("{}:{token}", one.claim));
    redis.cli(&["PEXPIRE", name.as_str(), "20000"]).unwrap();
    assert_eq!(Claimant::token(one.acquire()), token);
    assert!(
        redis.cli(&["PTTL", name.as_str()]).unwrap().number().unwrap() > 20_000,
        "the lifetime was not restarted"
    );
    assert_eq!(Claimant::token(one.confirm()), token);
}

/// Where replicas must acknowledge a grant, they acknowledge the write of its confirm. It often comes in the millisecond in
/// which the lock was granted, when its lifetime is still the same.
#[test]
fn every_confirm_writes_something_that_replicas_can_acknowledge() {
    const GRANTS: u64 = 200;
    let redis = Redis::start().unwrap();
    let writes = |confirms: bool| {
        let before = redis.calls("pexpire").unwrap();
        for _ in 0..GRANTS {
            let name = fresh_name();
            let one = Claimant::new(&redis, &name);
            one.acquire();
            if confirms {
                one.confirm();
            }
        }
        redis.calls("pexpire").unwrap() - before
    };
    let without = writes(false);
    assert_eq!(writes(true) - without, GRANTS);
}

#[test]
fn a_release_leaves_nothing_but_the_counter() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (Claimant::new(redis, &name), Claimant::new(redis, &name));
    one.acquire();
    other.acquire();
    assert_eq!((other.release(), one.release(), one.release()), (0, 1, 0));
    assert_eq!(remaining_keys(redis, &name), [side(&name, "fence")]);
    assert!(redis.cli(&["PTTL", &side(&name, "fence")]).unwrap().number().unwrap() > 0);
}

#[test]
fn try_of_a_held_lock_writes_nothing() {
    let (redis, name) = (shared(), fresh_name());
    Claimant::new(redis, &name).acquire();
    let (state, pttl) = Claimant::new(redis, &name).try_once();
    assert!(state == "busy" && pttl > 0, "{state} {pttl}");
    assert_eq!(redis.keys(&side(&name, "queue")).unwrap(), [""; 0]);
}

#[test]
fn queue_is_granted_in_order_of_arrival() {
    let (redis, name) = (shared(), fresh_name());
    let claimants: Vec<Claimant<'_>> = (0..5).map(|_| Claimant::new(redis, &name)).collect();
    let mut tokens = vec![Claimant::token(claimants[0].acquire())];
    for waiter in &claimants[1..] {
        assert_eq!(waiter.acquire().0, "queued");
        // A repeated request keeps the entry.
        assert_eq!(claimants[1].acquire().0, "queued");
        assert_eq!(waiter.confirm().0, "queued");
    }
    for pair in claimants.windows(2) {
        assert_eq!(pair[0].release(), 1);
        assert_eq!(pair[0].confirm().0, "gone");
        tokens.push(Claimant::token(pair[1].confirm()));
    }
    assert_rising(&tokens);
}

#[test]
fn free_lock_is_granted_to_the_waiter_first() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, waiter, late] = [(); 3].map(|()| Claimant::new(redis, &name));
    holder.acquire();
    waiter.acquire();
    // As if it had expired.
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(late.acquire().0, "queued");
    assert_eq!(waiter.confirm().0, "granted");
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(Claimant::new(redis, &name).try_once().0, "busy");
    assert_eq!(late.confirm().0, "granted");
}

#[test]
fn any_request_grants_a_free_lock_to_the_head() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, head, second] = [(); 3].map(|()| Claimant::new(redis, &name));
    holder.acquire();
    head.acquire();
    second.acquire();
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(second.confirm().0, "queued");
    assert!(redis.cli(&["GET", name.as_str()]).unwrap().text().starts_with(&head.claim));
    // Also the withdrawal of a cancelled waiter.
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(head.release(), 0);
    assert!(redis.cli(&["GET", name.as_str()]).unwrap().text().starts_with(&second.claim));
}

#[test]
fn dead_waiters_are_skipped_and_leave_nothing() {
    let (redis, name) = (shared(), fresh_name());
    let (holder, living) = (Claimant::new(redis, &name), Claimant::new(redis, &name));
    holder.acquire();
    let dead: Vec<Claimant<'_>> = (0..3).map(|_| Claimant::dying(redis, &name)).collect();
    for claimant in &dead {
        assert_eq!(claimant.acquire().0, "queued");
    }
    living.acquire();
    // They lapse by the server's clock, which is that of this machine.
    std::thread::sleep(std::time::Duration::from_millis(5));
    holder.release();
    assert_eq!(living.confirm().0, "granted");
    assert_eq!(dead[0].confirm().0, "gone");
    living.release();
    assert_eq!(remaining_keys(redis, &name), [side(&name, "fence")]);
}

#[test]
fn recheck_extends_the_wait() {
    let (redis, name) = (shared(), fresh_name());
    let holder = Claimant::new(redis, &name);
    holder.acquire();
    let waiter = Claimant { ttl: "60000", ..Claimant::dying(redis, &name) };
    let dying = Claimant { claim: waiter.claim.clone(), ..Claimant::dying(redis, &name) };
    dying.acquire();
    assert_eq!(waiter.confirm().0, "queued");
    std::thread::sleep(std::time::Duration::from_millis(5));
    holder.release();
    assert_eq!(waiter.confirm().0, "granted");
}

#[test]
fn only_the_next_client_is_notified() {
    let redis = Redis::start().unwrap();
    let name = fresh_name();
    let claimants: Vec<Claimant<'_>> = (0..4).map(|_| Claimant::new(&redis, &name)).collect();
    for claimant in &claimants {
        claimant.acquire();
    }
    assert_eq!(redis.calls("publish").unwrap(), 0);
    claimants[0].release();
    assert_eq!(redis.calls("publish").unwrap(), 1);
    claimants[1].confirm();
    assert_eq!(redis.calls("publish").unwrap(), 1);
}

#[test]
fn tokens_rise_when_the_counter_is_lost_junk_or_ahead_of_the_clock() {
    let (redis, name) = (shared(), fresh_name());
    let counter = side(&name, "fence");
    let mut last = 0;
    let next = || {
        let claimant = Claimant::new(redis, &name);
        let token = Claimant::token(claimant.acquire());
        claimant.release();
        token
    };
    for junk in ["", "soon", "-1", "1e300", "nan", "inf", "9007199254740993"] {
        last = next().max(last + 1);
        redis.cli(&["SET", &counter, junk]).unwrap();
        let token = next();
        assert!(token > last, "{token} after {last} with {junk:?}");
        assert!(next() > token, "not above {token} with {junk:?}");
        redis.cli(&["DEL", &counter]).unwrap();
    }
    redis.cli(&["HSET", &counter, "a", "1"]).unwrap();
    assert!(next() > last);
    let ahead = i64::pow(2, 52);
    redis.cli(&["SET", &counter, &ahead.to_string()]).unwrap();
    assert_eq!((next(), next()), (ahead + 1, ahead + 2));
}

#[test]
fn locks_of_other_programs_are_busy_in_any_form() {
    let redis = shared();
    let huge = "x".repeat(10 << 20);
    let foreign: [&[&str]; 7] = [
        &["SET", "KEY", "their-token"],
        &["SET", "KEY", ""],
        &["SET", "KEY", &huge],
        &["SET", "KEY", "0123456789abcdef0123456789abcdef"],
        &["HSET", "KEY", "field", "1"],
        &["RPUSH", "KEY", "item"],
        &["XADD", "KEY", "*", "a", "b"],
    ];
    for command in foreign {
        let name = fresh_name();
        let command: Vec<&str> =
            command.iter().map(|&part| if part == "KEY" { name.as_str() } else { part }).collect();
        redis.cli(&command).unwrap();
        let (one, other) = (Claimant::new(redis, &name), Claimant::new(redis, &name));
        assert_eq!(one.try_once(), ("busy".to_owned(), -1), "{}", command[0]);
        assert_eq!(one.acquire(), ("queued".to_owned(), -1));
        assert_eq!(one.confirm(), ("queued".to_owned(), -1));
        assert_eq!(other.release(), 0);
        assert_eq!(
            redis.cli(&["EXISTS", name.as_str()]).unwrap().number(),
            Some(1),
            "deleted {}",
            command[0]
        );
        redis.cli(&["DEL", name.as_str()]).unwrap();
        assert_eq!(one.confirm().0, "granted");
    }
}

#[test]
fn renewal_needs_claim_and_token_and_restores_nothing() {
    let redis = shared();
    let names = [(); 5].map(|()| fresh_name());
    let holders: Vec<Claimant<'_>> = names.iter().map(|name| Claimant::new(redis, name)).collect();
    let values: Vec<String> = holders
        .iter()
        .map(|holder| format!("{}:{}", holder.claim, Claimant::token(holder.acquire())))
        .collect();
    redis.cli(&["DEL", names[1].as_str()]).unwrap();
    redis.cli(&["SET", names[2].as_str(), &format!("{}:7", holders[2].claim)]).unwrap();
    redis.cli(&["DEL", names[3].as_str()]).unwrap();
    redis.cli(&["HSET", names[3].as_str(), "a", "1"]).unwrap();
    let mut command = vec!["EVAL", *RENEW, "5"];
    command.extend(names.iter().map(LockName::as_str));
    command.push("90000");
    command.extend(values.iter().map(String::as_str));
    let answers = redis.cli(&command).unwrap();
    let answers: Vec<i64> = answers.list().iter().filter_map(Reply::number).collect();
    assert_eq!(answers, [1, 0, 0, 0, 1]);
    assert!(redis.cli(&["PTTL", names[0].as_str()]).unwrap().number().unwrap() > 60_000);
    assert_eq!(redis.cli(&["EXISTS", names[1].as_str()]).unwrap().number(), Some(0));
    assert_eq!(redis.cli(&["PTTL", names[2].as_str()]).unwrap().number(), Some(-1));
}

#[test]
fn heartbeat_of_waiters_extends_waits_and_adds_none() {
    let (redis, name) = (shared(), fresh_name());
    let (holder, waiter, stranger) =
        (Claimant::new(redis, &name), Claimant::new(redis, &name), Claimant::new(redis, &name));
    holder.acquire();
    waiter.acquire();
    let (queue, lapses) = (side(&name, "queue"), side(&name, "deadlines"));
    redis.cli(&["HSET", &lapses, &waiter.claim, "1:60000:c0ffee"]).unwrap();
    let heartbeat = || heartbeat(redis, &[(&name, &waiter.claim), (&name, &stranger.claim)]);
    let [pttl, -3] = heartbeat()[..] else { panic!("the stranger waits") };
    assert!((1..=60_000).contains(&pttl), "{pttl}");
    let moved = redis.cli(&["HGET", &lapses, &waiter.claim]).unwrap();
    assert!(!moved.text().starts_with("1:"), "{moved:?}");
    assert_eq!(redis.cli(&["HLEN", &lapses]).unwrap().number(), Some(2), "an entry and its metadata");
    // Waits are extended while anybody waits, so the keys must live as long.
    for key in [&queue, &lapses] {
        redis.cli(&["PEXPIRE", key, "20000"]).unwrap();
        heartbeat();
        assert!(redis.cli(&["PTTL", key]).unwrap().number() > Some(100_000), "{key} ends");
    }
    // A waiter without an entry in `lapses` counts as lapsed, and a heartbeat does not revive it.
    redis.cli(&["HDEL", &lapses, &waiter.claim]).unwrap();
    assert_eq!(heartbeat(), [-3, -3]);
    assert_eq!(redis.cli(&["HKEYS", &lapses]).unwrap().list()[0].text(), format!("@{}", waiter.claim));
    redis.cli(&["HSET", &lapses, &waiter.claim, "1:60000:c0ffee"]).unwrap();
    redis.cli(&["PERSIST", name.as_str()]).unwrap();
    assert_eq!(heartbeat(), [-1, -3], "another program's lock without a ttl");
    // Nobody holds it: the waiter re-checks.
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(heartbeat(), [-2, -3]);
    assert_eq!(waiter.confirm().0, "granted");
    // It was granted the lock: it no longer waits.
    assert_eq!(heartbeat(), [-3, -3]);
}

#[test]
fn replaced_queue_stops_every_script_before_its_first_write() {
    let redis = shared();
    for what in ["queue", "deadlines"] {
        let name = fresh_name();
        let [holder, waiter, late] = [(); 3].map(|()| Claimant::new(redis, &name));
        holder.acquire();
        waiter.acquire();
        let junk = side(&name, what);
        redis.cli(&["DEL", &junk]).unwrap();
        redis.cli(&["RPUSH", &junk, "junk"]).unwrap();
        for is_held in [true, false] {
            if !is_held {
                redis.cli(&["DEL", name.as_str()]).unwrap();
            }
            let before = dump(redis, &name);
            for claimant in [&holder, &waiter, &late] {
                for (script, more) in [
                    (*ACQUIRE, &["c0ffee", "wait", "{}"][..]),
                    (*ACQUIRE, &["c0ffee", "try", "{}"]),
                    (*CONFIRM, &["c0ffee"]),
                    (*RELEASE, &[]),
                ] {
                    // The holder needs no queue before the handoff, nor does a try of a held lock. Without an entry in
                    // `lapses` a claim does not wait, whatever the queue is.
                    let allowed = match script {
                        _ if !is_held || script == *RELEASE => "",
                        _ if std::ptr::eq(claimant, &holder) => "granted",
                        _ if script == *ACQUIRE && more.contains(&"try") => "busy",
                        _ if script == *CONFIRM && std::ptr::eq(claimant, &late) && what == "queue" => "gone",
                        _ => "",
                    };
                    match claimant.try_run(script, more) {
                        Ok(answer) if claim_state(&answer).0 == allowed => {}
                        answer => {
                            let error = answer.unwrap_err().to_string();
                            assert!(error.contains(&format!("WRONGTYPE {junk}")), "{error}");
                        }
                    }
                    assert_eq!(dump(redis, &name), before, "{what}: a script has written");
                }
            }
        }
    }
}

/// Returns the contents of all keys of a lock, without their ttls.
fn dump(redis: &Redis, name: &LockName) -> Vec<(String, Reply)> {
    let keys = remaining_keys(redis, name).into_iter();
    keys.map(|key| (key.clone(), redis.command(&[b"DUMP".as_slice(), key.as_bytes()]).unwrap())).collect()
}

#[test]
fn heartbeat_of_waiters_skips_a_replaced_queue() {
    let redis = shared();
    let names = [(); 4].map(|()| fresh_name());
    let waiters: Vec<Claimant<'_>> = names.iter().map(|name| Claimant::new(redis, name)).collect();
    for waiter in &waiters {
        Claimant::new(redis, waiter.name).acquire();
        assert_eq!(waiter.acquire().0, "queued");
    }
    for (name, what) in names.iter().zip(["queue", "deadlines"]) {
        redis.cli(&["DEL", &side(name, what)]).unwrap();
        redis.cli(&["SET", &side(name, what), "junk"]).unwrap();
    }
    // As if an operator had removed its entry.
    redis.cli(&["ZREM", &side(&names[2], "queue"), &waiters[2].claim]).unwrap();
    let waiters: Vec<_> = waiters.iter().map(|waiter| (waiter.name, &*waiter.claim)).collect();
    let answers = heartbeat(redis, &waiters);
    assert!(matches!(answers[..], [-3, -3, -3, pttl] if pttl > 0), "{answers:?}");
}

#[test]
fn metadata_are_those_of_the_last_grant_and_expire() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, waiter] = [(); 2].map(|()| Claimant::new(redis, &name));
    let counter = side(&name, "fence");
    let stored = || redis.cli(&["GET", &counter]).unwrap().text().to_owned();
    let token = Claimant::token(claim_state(&holder.run(*ACQUIRE, &["c0ffee", "wait", "of the holder"])));
    assert_eq!(stored(), format!("{token}\0c0ffee of the holder"));
    assert!(redis.cli(&["PTTL", &counter]).unwrap().number() > Some(100_000), "they end before the hold");
    assert_eq!(claim_state(&waiter.run(*ACQUIRE, &["cafe", "wait", "of the waiter"])).0, "queued");
    // As if it had expired.
    redis.cli(&["DEL", name.as_str()]).unwrap();
    let token = Claimant::token(waiter.confirm());
    assert_eq!(stored(), format!("{token}\0cafe of the waiter"));
    assert_eq!(remaining_keys(redis, &name).len(), 2, "the lock and the counter");
    // From here on, the counter lives as long as it is configured to.
    waiter.release();
    let left = redis.cli(&["PTTL", &counter]).unwrap().number();
    assert!((1..=100_000).contains(&left.unwrap()), "{left:?}");
}

/// Clients of an earlier version know neither metadata behind the counter nor those in `lapses`.
#[test]
fn grants_of_an_earlier_version_and_of_this_one_have_rising_tokens() {
    let (redis, name) = (shared(), fresh_name());
    let (counter, ahead) = (side(&name, "fence"), 1_i64 << 52);
    redis.cli(&["SET", &counter, &ahead.to_string()]).unwrap();
    let one = Claimant::new(redis, &name);
    assert_eq!(Claimant::token(one.acquire()), ahead + 1);
    let as_before = "return string.format('%.0f', tonumber(redis.call('GET', KEYS[1])))";
    let read = redis.cli(&["EVAL", as_before, "1", &counter]).unwrap();
    assert_eq!(read.text(), (ahead + 1).to_string());
    // A waiter of an earlier version.
    let waiter = Claimant::new(redis, &name);
    redis.cli(&["ZADD", &side(&name, "queue"), "1", &waiter.claim]).unwrap();
    let entry = format!("{}:60000:{:032x}", 1_i64 << 52, 7);
    redis.cli(&["HSET", &side(&name, "deadlines"), &waiter.claim, &entry]).unwrap();
    one.release();
    assert_eq!(Claimant::token(waiter.confirm()), ahead + 2);
}
