//! Options of flock(1), and the longest duration of a hold.

use std::time::{Duration, Instant};

use crate::harness::{Home, Started, done};

#[test]
fn options_of_flock_do_the_same_here() {
    let home = Home::new();
    let holder = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    for options in [&["-n"][..], &["-w", "0.1"], &["-w", "0"], &["--timeout", "100ms"]] {
        let busy = done(home.run(&[options, &["a"]].concat(), "echo ran"));
        assert_eq!((busy.status, &*busy.stdout), (75, ""), "{options:?}: {}", busy.stderr);
        let busy = done(home.run(&[options, &["-E", "9", "a"]].concat(), "echo ran"));
        assert_eq!((busy.status, &*busy.stdout), (9, ""), "{options:?}: {}", busy.stderr);
    }
    drop(holder);
    let shell = done(home.lockkit(["run", "a", "-c", "echo \"$LOCKKIT_NAME\"; exit 6"]));
    assert_eq!((shell.status, &*shell.stdout), (6, "a\n"));
    assert_eq!(
        done(home.lockkit(["run", "-E", "9", "-n", "a", "-c", "exit 75"])).status,
        75,
        "the command's"
    );
    let wrong_options = [
        &["-c", "true", "a", "--", "true"][..],
        &["-n", "-w", "1", "a", "--", "true"],
        &["-E", "256", "a"],
        &["--max-hold", "0", "a", "--", "true"],
    ];
    for wrong in wrong_options {
        assert_eq!(done(home.lockkit([&["run"], wrong].concat())).status, 64, "{wrong:?}");
    }
}

#[test]
fn longest_hold_ends_the_job_with_a_warning_first() {
    let home = Home::new();
    let script =
        "exec 2>/dev/null; trap 'echo terminated; exit 3' TERM; echo started; while :; do sleep 0.01; done";
    let started = Instant::now();
    // The job has three seconds for its trap, also on a busy machine.
    let ended = done(home.run(&["--max-hold", "12", "a"], script));
    let took = started.elapsed();
    assert_eq!((ended.status, &*ended.stdout), (76, "started\nterminated\n"), "{}", ended.stderr);
    assert!(ended.message().contains("--max-hold of 12s"), "{}", ended.stderr);
    assert!(took > Duration::from_secs(6), "SIGTERM comes a quarter of the time before the end: {took:?}");
    assert_eq!(done(home.run(&["-n", "a"], "exit 5")).status, 5);
    let quick = done(home.run(&["--max-hold", "1e18", "a"], "exit 5"));
    assert_eq!((quick.status, &*quick.stderr), (5, ""));
}

/// It ends by SIGTERM, before its lock is lost.
#[test]
fn job_that_had_to_end_has_not_succeeded() {
    let home = Home::new();
    let script = "exec 2>/dev/null; trap 'exit 0' TERM; while :; do sleep 0.01; done";
    // The job has three seconds for its trap, also on a busy machine.
    let ended = done(home.run(&["--max-hold", "12", "a"], script));
    assert_eq!(ended.status, 76, "{}", ended.stderr);
}

/// Its end begins a quarter of that time before, not a quarter of the ttl.
#[test]
fn short_longest_hold_leaves_time_for_the_job() {
    /// A busy machine may be too slow for a time limit.
    const TRIES: usize = 3;
    let home = Home::new();
    let has_time = || done(home.run(&["--max-hold", "5s", "a"], "sleep 1; exit 5")).status == 5;
    assert!((0..TRIES).any(|_| has_time()), "the job ends too early");
}

#[cfg(feature = "redis")]
#[test]
fn lock_is_free_when_its_longest_hold_has_ended_the_job() {
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start().unwrap();
    let options = ["--backend", &redis.url(), "--max-hold", "2s", "a"];
    let ended = done(home.run(&options, "exec sleep 20"));
    assert_eq!(ended.status, 76, "{}", ended.stderr);
    assert!(ended.message().contains("--max-hold of 2s"), "{}", ended.stderr);
    let next = done(home.run(&["--backend", &redis.url(), "-n", "a"], "exit 5"));
    assert_eq!(next.status, 5, "{}", next.stderr);
}
