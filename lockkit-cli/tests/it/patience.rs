//! The wait for a store that does not answer yet.

use std::time::{Duration, Instant};

use lockkit_testbed::{Proxy, Redis, eventually};

use crate::harness::{Home, Started, WAITS, done};

/// Longest part of a wait that a busy machine may add.
const BUSY: Duration = Duration::from_secs(20);

#[test]
fn store_that_comes_up_is_waited_for_as_long_as_for_the_lock() {
    for options in [&[][..], &["--timeout", "60"], &["--timeout", "0", "--connect-timeout", "60"]] {
        let home = Home::new();
        let mut redis = Redis::start().unwrap();
        let url = redis.url();
        redis.kill().unwrap();
        let mut run = Started::new(&mut home.run(&[options, &["--backend", &url, "a"]].concat(), "exit 5"));
        let mut messages = run.messages();
        // It says why, and after a second that it waits.
        messages.until("warning: no new session yet");
        messages.until(WAITS);
        redis.restart().unwrap();
        assert_eq!(run.wait(), 5, "{options:?}");
    }
}

#[test]
fn patience_has_an_end() {
    let home = Home::new();
    let away = "redis://127.0.0.1:1";
    let with = |options: &[&str], url: &str| {
        let started = Instant::now();
        let ended = done(home.run(&[options, &["--backend", url, "a"]].concat(), "echo ran"));
        assert_eq!((ended.status, &*ended.stdout), (69, ""), "{options:?} {}", ended.stderr);
        started.elapsed()
    };
    for options in [&["-n"][..], &["--connect-timeout", "0"], &["--timeout", "60", "--connect-timeout", "0"]]
    {
        assert!(with(options, away) < BUSY, "{options:?}");
    }
    for options in [&[][..], &["--timeout", "60"]] {
        let took = with(options, "redis://127.0.0.1:1?connect_timeout=0s");
        assert!(took < BUSY, "the URL says so, {options:?}");
    }
    let second = Duration::from_secs(1);
    assert!((second..BUSY).contains(&with(&["--timeout", "1"], away)));
    assert!((second..BUSY).contains(&with(&["--connect-timeout", "1"], away)));
}

#[test]
fn quiet_wait_for_the_store_says_only_how_it_ended() {
    let home = Home::new();
    let options = ["-q", "--backend", "redis://127.0.0.1:1", "--timeout", "3", "a"];
    let mut run = Started::new(&mut home.run(&options, "echo ran"));
    let mut messages = run.messages();
    let lines: Vec<String> = std::iter::from_fn(|| messages.next()).collect();
    assert_eq!((run.wait(), lines.len()), (69, 1), "{lines:?}");
    assert!(!lines[0].contains(WAITS), "{lines:?}");
}

#[test]
fn signal_ends_the_wait_for_the_store() {
    let home = Home::new();
    let mut run = Started::new(&mut home.run(&["--backend", "redis://127.0.0.1:1", "a"], "echo ran"));
    run.messages().until("waiting for the store");
    run.send(rustix::process::Signal::TERM);
    assert_eq!(run.wait(), 143);
}

#[test]
fn refusal_ends_the_wait_at_once() {
    let home = Home::new();
    let redis = crate::harness::redis_with_password("hunter2");
    let refused = Started::new(&mut home.run(&["--backend", &redis.url(), "a"], "echo ran")).done();
    assert_eq!((refused.status, &*refused.stdout), (77, ""), "{}", refused.stderr);
}

/// A server with a lock that another program holds.
fn with_a_busy_lock() -> (Redis, Proxy) {
    let redis = Redis::start().unwrap();
    redis.cli(&["SET", "a", "another program's"]).unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    (redis, proxy)
}

#[test]
fn time_until_the_store_answers_is_part_of_the_time_limit() {
    let (home, (_redis, proxy)) = (Home::new(), with_a_busy_lock());
    proxy.refuse();
    let url = format!("redis://{}", proxy.endpoint());
    let options = ["--backend", &url, "--timeout", "1", "--connect-timeout", "60", "a"];
    let mut run = Started::new(&mut home.run(&options, "echo ran"));
    let mut messages = run.messages();
    // After a second: nothing is left of the time limit, so the lock is only tried.
    messages.until(WAITS);
    proxy.pass();
    messages.until("not acquired: ");
    assert_eq!(run.wait(), 75);
}

/// A waiter says that it does not know for whom it waits, and ends in time.
#[test]
fn holder_is_not_asked_for_at_length() {
    let (home, (redis, _proxy)) = (Home::new(), with_a_busy_lock());
    let url = format!("{}?request_timeout=60s", redis.url());
    let mut run = Started::new(&mut home.run(&["--backend", &url, "--timeout", "12", "a"], "echo ran"));
    let mut messages = run.messages();
    let waiters = || redis.cli(&["ZCARD", "lockkit:{a}:queue"]).unwrap().number().unwrap();
    eventually("the claim in the queue", || (waiters() == 1).then_some(()));
    redis.pause().unwrap();
    let begin = Instant::now();
    messages.until("its holder is unknown: no answer within 2s");
    messages.until("not acquired within --timeout");
    assert_eq!(run.wait(), 75);
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(45), "two seconds to ask, five to withdraw: {took:?}");
    redis.resume().unwrap();
}

/// What it leaves would cost other waiters up to two ttls. Only after a loss there is no time for that.
#[test]
fn wait_that_was_in_vain_is_withdrawn_although_that_takes_a_while() {
    /// A busy machine may be too slow for a time limit.
    const TRIES: usize = 3;
    let home = Home::new();
    let is_withdrawn = || {
        let (redis, proxy) = with_a_busy_lock();
        let url = format!("redis://{}?request_timeout=1s", proxy.endpoint());
        let options = ["-q", "--backend", &url, "--timeout", "5", "a"];
        let run = Started::new(&mut home.run(&options, "echo ran"));
        let waiters = || redis.cli(&["ZCARD", "lockkit:{a}:queue"]).unwrap().number().unwrap();
        eventually("the claim in the queue", || (waiters() == 1).then_some(()));
        // The withdrawal is repeated over another connection.
        proxy.stall_open();
        let ended = run.done();
        assert_eq!((ended.status, &*ended.stdout), (75, ""), "{}", ended.stderr);
        waiters() == 0
    };
    assert!((0..TRIES).any(|_| is_withdrawn()), "it is still in the queue");
}
