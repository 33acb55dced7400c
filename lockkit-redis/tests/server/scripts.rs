//! Each script in each state of a lock: what it answers, and what it leaves.

use lockkit_core::LockName;
use lockkit_testbed::{Redis, Reply};

use crate::{
    common::{assert_rising, fresh_name, shared, side},
    raw::{ACQUIRE, CONFIRM, Claimant, RELEASE, RENEW, beat, left},
};

#[test]
fn a_free_lock_is_granted_and_a_repeated_acquire_finds_it() {
    let (redis, name) = (shared(), fresh_name());
    let one = Claimant::new(redis, &name);
    let token = Claimant::token(one.acquire());
    assert_eq!(redis.cli(&["GET", name.as_str()]).unwrap().text(), format!("{}:{token}", one.claim));
    redis.cli(&["PEXPIRE", name.as_str(), "5000"]).unwrap();
    assert_eq!(Claimant::token(one.acquire()), token);
    assert!(redis.cli(&["PTTL", name.as_str()]).unwrap().number().unwrap() > 5000, "not armed anew");
    assert_eq!(Claimant::token(one.confirm()), token);
}

#[test]
fn a_release_leaves_nothing_but_the_counter() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (Claimant::new(redis, &name), Claimant::new(redis, &name));
    one.acquire();
    other.acquire();
    assert_eq!((other.release(), one.release(), one.release()), (0, 1, 0));
    assert_eq!(left(redis, &name), [side(&name, "fence")]);
    assert!(redis.cli(&["PTTL", &side(&name, "fence")]).unwrap().number().unwrap() > 0);
}

#[test]
fn a_try_that_meets_a_holder_writes_nothing() {
    let (redis, name) = (shared(), fresh_name());
    Claimant::new(redis, &name).acquire();
    let (word, pttl) = Claimant::new(redis, &name).try_once();
    assert!(word == "busy" && pttl > 0, "{word} {pttl}");
    assert_eq!(redis.keys(&side(&name, "queue")).unwrap(), [""; 0]);
}

#[test]
fn waiters_get_it_in_the_order_of_their_arrival() {
    let (redis, name) = (shared(), fresh_name());
    let claimants: Vec<Claimant<'_>> = (0..5).map(|_| Claimant::new(redis, &name)).collect();
    let mut tokens = vec![Claimant::token(claimants[0].acquire())];
    for waiter in &claimants[1..] {
        assert_eq!(waiter.acquire().0, "queued");
        // A copy keeps its place.
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
fn nobody_takes_a_free_lock_before_the_one_that_waits() {
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
fn whoever_looks_first_hands_a_free_lock_to_the_head() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, head, second] = [(); 3].map(|()| Claimant::new(redis, &name));
    holder.acquire();
    head.acquire();
    second.acquire();
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(second.confirm().0, "queued");
    assert!(redis.cli(&["GET", name.as_str()]).unwrap().text().starts_with(&head.claim));
    // Also a cancelled waiter, on its way out.
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
    // Their deadlines are on the server's clock, which is this machine's.
    std::thread::sleep(std::time::Duration::from_millis(5));
    holder.release();
    assert_eq!(living.confirm().0, "granted");
    assert_eq!(dead[0].confirm().0, "gone");
    living.release();
    assert_eq!(left(redis, &name), [side(&name, "fence")]);
}

#[test]
fn a_waiter_that_looks_stays_alive() {
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
fn one_message_goes_to_the_client_that_is_next() {
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
    let fence = side(&name, "fence");
    let mut last = 0;
    let next = || {
        let claimant = Claimant::new(redis, &name);
        let token = Claimant::token(claimant.acquire());
        claimant.release();
        token
    };
    for junk in ["", "soon", "-1", "1e300", "nan", "inf", "9007199254740993"] {
        last = next().max(last + 1);
        redis.cli(&["SET", &fence, junk]).unwrap();
        let token = next();
        assert!(token > last, "{token} after {last} with {junk:?}");
        redis.cli(&["DEL", &fence]).unwrap();
    }
    redis.cli(&["HSET", &fence, "a", "1"]).unwrap();
    assert!(next() > last);
    let ahead = i64::pow(2, 52);
    redis.cli(&["SET", &fence, &ahead.to_string()]).unwrap();
    assert_eq!((next(), next()), (ahead + 1, ahead + 2));
}

#[test]
fn locks_of_other_programs_are_busy_whatever_they_look_like() {
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
    for words in foreign {
        let name = fresh_name();
        let words: Vec<&str> =
            words.iter().map(|&word| if word == "KEY" { name.as_str() } else { word }).collect();
        redis.cli(&words).unwrap();
        let (one, other) = (Claimant::new(redis, &name), Claimant::new(redis, &name));
        assert_eq!(one.try_once(), ("busy".to_owned(), -1), "{}", words[0]);
        assert_eq!(one.acquire(), ("queued".to_owned(), -1));
        assert_eq!(one.confirm(), ("queued".to_owned(), -1));
        assert_eq!(other.release(), 0);
        assert_eq!(redis.cli(&["EXISTS", name.as_str()]).unwrap().number(), Some(1), "deleted {}", words[0]);
        redis.cli(&["DEL", name.as_str()]).unwrap();
        assert_eq!(one.confirm().0, "granted");
    }
}

#[test]
fn a_renewal_needs_claim_and_token_and_brings_nothing_back() {
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
    let mut words = vec!["EVAL", RENEW, "5"];
    words.extend(names.iter().map(LockName::as_str));
    words.push("90000");
    words.extend(values.iter().map(String::as_str));
    let answers = redis.cli(&words).unwrap();
    let answers: Vec<i64> = answers.list().iter().filter_map(Reply::number).collect();
    assert_eq!(answers, [1, 0, 0, 0, 1]);
    assert!(redis.cli(&["PTTL", names[0].as_str()]).unwrap().number().unwrap() > 60_000);
    assert_eq!(redis.cli(&["EXISTS", names[1].as_str()]).unwrap().number(), Some(0));
    assert_eq!(redis.cli(&["PTTL", names[2].as_str()]).unwrap().number(), Some(-1));
}

#[test]
fn a_beat_of_waiters_moves_deadlines_and_adds_none() {
    let (redis, name) = (shared(), fresh_name());
    let (holder, waiter, stranger) =
        (Claimant::new(redis, &name), Claimant::new(redis, &name), Claimant::new(redis, &name));
    holder.acquire();
    waiter.acquire();
    let (queue, deadlines) = (side(&name, "queue"), side(&name, "deadlines"));
    redis.cli(&["HSET", &deadlines, &waiter.claim, "1:60000:c0ffee"]).unwrap();
    let beat = || beat(redis, &[(&name, &waiter.claim), (&name, &stranger.claim)]);
    let [pttl, -3] = beat()[..] else { panic!("the stranger waits") };
    assert!((1..=60_000).contains(&pttl), "{pttl}");
    let moved = redis.cli(&["HGET", &deadlines, &waiter.claim]).unwrap();
    assert!(!moved.text().starts_with("1:"), "{moved:?}");
    assert_eq!(redis.cli(&["HLEN", &deadlines]).unwrap().number(), Some(1));
    // The deadline moves for as long as anybody waits: what it is in must live for as long.
    for key in [&queue, &deadlines, &side(&name, "metadata")] {
        redis.cli(&["PEXPIRE", key, "1000"]).unwrap();
        beat();
        assert!(redis.cli(&["PTTL", key]).unwrap().number() > Some(100_000), "{key} ends");
    }
    // A place that has lost its deadline is a dead claim's, whatever its client says.
    redis.cli(&["HDEL", &deadlines, &waiter.claim]).unwrap();
    assert_eq!(beat(), [-3, -3]);
    assert_eq!(redis.cli(&["HLEN", &deadlines]).unwrap().number(), Some(0));
    redis.cli(&["HSET", &deadlines, &waiter.claim, "1:60000:c0ffee"]).unwrap();
    redis.cli(&["PERSIST", name.as_str()]).unwrap();
    assert_eq!(beat(), [-1, -3], "another program's lock without an end");
    // Nobody holds it: a reason to look.
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(beat(), [-2, -3]);
    assert_eq!(waiter.confirm().0, "granted");
    // Handed over: another one.
    assert_eq!(beat(), [-3, -3]);
}

#[test]
fn what_is_no_queue_stops_every_script_before_its_first_write() {
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
                    (ACQUIRE, &["c0ffee", "wait", "{}"][..]),
                    (ACQUIRE, &["c0ffee", "try", "{}"]),
                    (CONFIRM, &["c0ffee"]),
                    (RELEASE, &[]),
                ] {
                    let error = claimant.try_run(script, more).unwrap_err().to_string();
                    assert!(error.starts_with("WRONGTYPE") && error.contains(&junk), "{error}");
                    assert_eq!(dump(redis, &name), before, "{what}: written");
                }
            }
        }
    }
}

/// Everything that there is of a lock, but for how long it lives.
fn dump(redis: &Redis, name: &LockName) -> Vec<(String, Reply)> {
    let keys = left(redis, name).into_iter();
    keys.map(|key| (key.clone(), redis.command(&[b"DUMP".as_slice(), key.as_bytes()]).unwrap())).collect()
}

#[test]
fn a_beat_of_waiters_goes_round_what_is_no_queue() {
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
    // An operator has removed its place.
    redis.cli(&["ZREM", &side(&names[2], "queue"), &waiters[2].claim]).unwrap();
    redis.cli(&["DEL", &side(&names[3], "metadata")]).unwrap();
    redis.cli(&["SET", &side(&names[3], "metadata"), "junk"]).unwrap();
    let waiters: Vec<_> = waiters.iter().map(|waiter| (waiter.name, &*waiter.claim)).collect();
    let answers = beat(redis, &waiters);
    assert!(matches!(answers[..], [-3, -3, -3, pttl] if pttl > 0), "{answers:?}");
}

#[test]
fn metadata_go_with_the_holder_however_it_ends_and_do_not_outlive_all_use() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, waiter] = [(); 2].map(|()| Claimant::new(redis, &name));
    let metadata = side(&name, "metadata");
    holder.acquire();
    assert!(redis.cli(&["PTTL", &metadata]).unwrap().number() > Some(0), "they stay for ever");
    waiter.acquire();
    // As if it had expired.
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(waiter.confirm().0, "granted");
    let kept = redis.cli(&["HKEYS", &metadata]).unwrap();
    let mut kept: Vec<&str> = kept.list().iter().map(Reply::text).collect();
    kept.sort_unstable_by_key(|field| *field == "holder");
    assert_eq!(kept, [&*waiter.claim, "holder"]);
}
