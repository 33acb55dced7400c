//! One job at a time, and no release before the last process of the job is gone.

use rustix::process::Signal;

use lockkit_testbed::eventually;

use crate::{
    harness::{Done, Home, Started, done},
    killed::STUBBORN,
    processes::{command_of, members, running_command_of},
};

/// Fails if another one runs at the same moment: with noclobber, the shell opens with O_EXCL.
pub(crate) const PROBE: &str = "set -C; : >probe || exit 99; sleep 0.01; rm probe";

#[test]
fn twenty_at_the_same_time_run_one_after_the_other() {
    let home = Home::new();
    twenty(&home, &[]);
}

/// Starts twenty at once; each must run alone.
pub(crate) fn twenty(home: &Home, options: &[&str]) {
    let options = [options, &["-q", "race"]].concat();
    let racers: Vec<Started> = (0..20).map(|_| Started::new(&mut home.run(&options, PROBE))).collect();
    for Done { status, stderr, .. } in racers.into_iter().map(Started::done) {
        assert_eq!((status, &*stderr), (0, ""));
    }
}

#[test]
fn different_names_run_side_by_side() {
    let home = Home::new();
    let _one = Started::until_started(&mut home.run(&["one"], "echo started; exec sleep 1000"));
    assert_eq!(done(home.run(&["--timeout", "0s", "other"], "exit 0")).status, 0);
}

#[test]
fn the_lock_is_held_until_the_last_process_of_the_group_has_ended() {
    let home = Home::new();
    let script = "sh -c 'until [ -e enough ]; do sleep 0.01; done' >/dev/null 2>&1 & echo started; exit 7";
    let mut job = Started::until_started(&mut home.run(&["a"], script));
    eventually("the end of the command", || running_command_of(job.pid()).is_none().then_some(()));
    for _ in 0..3 {
        assert_eq!(done(home.run(&["--timeout", "1s", "a"], "")).status, 75);
        assert!(job.runs());
    }
    std::fs::write(home.path("enough"), "").unwrap();
    assert_eq!(done(home.run(&["a"], "exit 0")).status, 0);
    let ended = job.done();
    assert_eq!(ended.status, 7);
    assert!(ended.message().contains("until the rest of its process group ends"), "{}", ended.stderr);
}

#[test]
fn process_that_leaves_the_group_is_neither_waited_for_nor_ended() {
    let home = Home::new();
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!";
    let job = done(home.run(&["a"], script));
    assert_eq!(job.status, 0);
    let daemon: i32 = job.stdout.trim().parse().unwrap();
    assert_eq!(members(daemon).len(), 1, "it leads a group of its own");
    rustix::process::kill_process(rustix::process::Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn killed_lockkit_frees_the_lock_at_once_for_a_waiter() {
    let home = Home::new();
    let holder = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    let mut waiter = Started::new(&mut home.run(&["a"], "echo started"));
    holder.send(Signal::KILL);
    assert_eq!(waiter.line(), "started");
    assert_eq!(waiter.done().status, 0);
    eventually("the end of the first job", || {
        members(holder.pid().as_raw_nonzero().get()).is_empty().then_some(())
    });
}

#[test]
fn lost_lock_ends_even_a_stopped_job() {
    let home = Home::new();
    let script = "trap 'echo terminated; exit 3' TERM; echo started; kill -STOP $$; exec sleep 1000";
    let ended = lose_the_lock_of(&home, script);
    assert_eq!((ended.status, &*ended.stdout), (76, "terminated\n"));
    assert!(ended.message().contains("lost"), "{}", ended.stderr);
    assert_eq!(done(home.run(&["a"], "exit 0")).status, 0);
}

#[test]
fn job_that_ignores_sigterm_is_killed() {
    let home = Home::new();
    // Without a deadline the watcher does not help.
    let ended = lose_the_lock_of(&home, STUBBORN);
    assert_eq!(ended.status, 76, "{}", ended.stderr);
}

/// Runs a job, and deletes its lock file.
fn lose_the_lock_of(home: &Home, script: &str) -> Done {
    let holder = Started::until_started(&mut home.run(&["a"], script));
    let group = command_of(holder.pid()).group;
    std::fs::remove_file(home.path("locks/a.lock")).unwrap();
    let ended = holder.done();
    assert_eq!(members(group).len(), 0);
    ended
}
