//! `run --once-per` and `run --at-least`.

use std::time::Duration;

use lockkit_testbed::{Redis, ServerClock, eventually};

use crate::harness::{Home, Started, done};

/// Returns what the hosts' jobs wrote: a line each time one ran.
fn lines(home: &Home) -> usize {
    std::fs::read_to_string(home.path("ran")).map_or(0, |text| text.lines().count())
}

#[test]
fn the_command_runs_once_per_period_on_hosts_whose_clocks_differ() {
    let (home, redis) = (Home::new(), Redis::start().unwrap());
    // Half a second apart, as measured by users whose jobs ran on every host.
    let clocks = [(); 3].map(|()| ServerClock::new().unwrap());
    for (clock, host) in clocks.iter().zip(0_u64..) {
        clock.step_forward(Duration::from_millis(500 * host)).unwrap();
    }
    let round = || {
        let hosts = clocks.each_ref().map(|clock| {
            let options = ["--backend", &*redis.url(), "--timeout", "60s", "--once-per", "1d", "job"];
            let mut command = home.run(&options, "echo ran >> ran");
            command.envs(clock.environment().iter().filter_map(|variable| variable.split_once('=')));
            Started::new(&mut command)
        });
        for host in hosts {
            let run = host.done();
            assert_eq!(run.status, 0, "{}", run.stderr);
        }
    };
    round();
    assert_eq!(lines(&home), 1);
    // One that comes late: the lock is free, the job is done.
    round();
    assert_eq!(lines(&home), 1);
    for clock in &clocks {
        clock.step_forward(Duration::from_secs(24 * 60 * 60)).unwrap();
    }
    round();
    assert_eq!(lines(&home), 2);
}

#[test]
fn what_is_not_run_says_so() {
    let home = Home::new();
    let run = || done(home.run(&["--once-per", "1000d", "a"], "echo ran"));
    // Longer than a year.
    let refused = run();
    assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
    let run = || done(home.run(&["--once-per", "1d", "a"], "echo ran"));
    let first = run();
    assert_eq!((first.status, &*first.stdout), (0, "ran\n"), "{}", first.stderr);
    let second = run();
    assert_eq!((second.status, &*second.stdout), (0, ""));
    assert!(second.message().contains("begun in this period"), "{}", second.message());
}

#[test]
fn a_command_that_cannot_begin_in_time_is_75() {
    let home = Home::new();
    let holder = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    let late = done(home.run(&["--timeout", "200ms", "--once-per", "1d", "a"], "echo ran"));
    assert_eq!((late.status, &*late.stdout), (75, ""));
    drop(holder);
    let next = eventually("the lock is free", || {
        let run = done(home.run(&["--timeout", "0s", "--once-per", "1d", "a"], "echo ran"));
        (run.status == 0).then_some(run)
    });
    assert_eq!(next.stdout, "ran\n", "the holder of the plain lock was not the work of this period");
}

#[test]
fn a_quick_command_keeps_the_lock_for_the_time_that_was_asked_for() {
    let (home, redis) = (Home::new(), Redis::start().unwrap());
    let url = redis.url();
    let options = ["--backend", &*url, "--timeout", "0s", "--at-least", "1h", "a"];
    let first = done(home.run(&options, "echo ran"));
    assert_eq!((first.status, &*first.stdout), (0, "ran\n"), "{}", first.stderr);
    let second = done(home.run(&options, "echo ran"));
    assert_eq!((second.status, &*second.stdout), (75, ""), "{}", second.stderr);
}

#[test]
fn a_store_that_cannot_keep_a_lock_refuses_to() {
    let home = Home::new();
    let refused = done(home.run(&["--at-least", "1h", "a"], "echo ran"));
    assert_eq!((refused.status, &*refused.stdout), (78, ""));
    assert!(refused.message().contains("does not have this power"), "{}", refused.message());
}
