//! The wait for a store that does not answer yet.

use std::time::{Duration, Instant};

use lockkit_testbed::Redis;

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
    assert!(with(&[], "redis://127.0.0.1:1?connect_timeout=0s") < BUSY, "the URL says so");
    let second = Duration::from_secs(1);
    assert!((second..BUSY).contains(&with(&["--timeout", "1"], away)));
    assert!((second..BUSY).contains(&with(&["--connect-timeout", "1"], away)));
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
