//! `lockkit run` is killed -9, or its watcher is.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    harness::{Home, Started, done, eventually},
    processes::{Process, alive, command_of, members, watcher_of},
};

/// A job of several processes that does not want to end.
pub(crate) const STUBBORN: &str =
    "trap '' TERM INT HUP; sleep 1000 & (trap '' TERM; sleep 1000 & wait) & echo started; wait";

/// A command that tells what runs at the moment of its start.
pub(crate) const SNAPSHOT: &str = "cat /proc/[0-9]*/stat 2>/dev/null; true";

/// The members of the group that were alive in a snapshot.
pub(crate) fn members_in(snapshot: &str, group: i32) -> Vec<Process> {
    snapshot
        .lines()
        .filter_map(Process::parse)
        .filter(|process| process.group == group && process.is_alive())
        .collect()
}

#[test]
fn nothing_of_the_job_is_alive_when_the_next_holder_starts() {
    let home = Home::new();
    let mut waits = Vec::new();
    for _ in 0..10 {
        waits.push(kill_and_take_over(&home, &[]));
    }
    println!("kill -9 over file locks, time until the next one runs: {waits:.1?}");
}

/// Kills a holder -9 while another one waits: the time until that one runs.
pub(crate) fn kill_and_take_over(home: &Home, options: &[&str]) -> Duration {
    let options = [options, &["a"]].concat();
    let holder = Started::until_started(&mut home.run(&options, STUBBORN));
    let group = command_of(holder.pid()).group;
    assert!(members(group).len() >= 3, "{:?}", members(group));
    let mut next = Started::new(&mut home.run(&options, &format!("echo started; {SNAPSHOT}")));
    let killed = Instant::now();
    holder.send(Signal::KILL);
    assert_eq!(next.line(), "started");
    let took = killed.elapsed();
    let next = next.done();
    assert_eq!(next.status, 0);
    assert!(next.stdout.lines().count() > 1, "a snapshot");
    assert_eq!(members_in(&next.stdout, group).len(), 0, "{}", next.stdout);
    took
}

#[test]
fn a_killed_watcher_is_replaced() {
    let home = Home::new();
    let holder = Started::until_started(&mut home.run(&["a"], STUBBORN));
    let group = command_of(holder.pid()).group;
    for _ in 0..3 {
        let watcher = watcher_of(holder.pid()).unwrap().pid;
        kill_process(Pid::from_raw(watcher).unwrap(), Signal::KILL).unwrap();
        eventually("another watcher", || watcher_of(holder.pid()).filter(|other| other.pid != watcher));
    }
    assert!(!members(group).is_empty());
    assert_eq!(done(home.run(&["--timeout", "0s", "a"], "")).status, 75, "still locked");
    holder.send(Signal::KILL);
    let next = done(home.run(&["a"], SNAPSHOT));
    assert_eq!(members_in(&next.stdout, group).len(), 0);
}

#[test]
fn a_watcher_that_is_killed_all_the_time_ends_the_job() {
    let home = Home::new();
    let mut holder = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    while holder.runs() {
        if let Some(watcher) = watcher_of(holder.pid()) {
            let _ = kill_process(Pid::from_raw(watcher.pid).unwrap(), Signal::KILL);
        }
    }
    let ended = holder.done();
    assert_eq!(ended.status, 71);
    assert!(ended.message().contains("watcher"));
}

#[test]
fn whenever_lockkit_is_killed_the_command_does_not_run_on() {
    let home = Home::new();
    for step in 0..40 {
        // An argument that no other process of this machine has.
        let mark = format!("1000.{}{step:03}", std::process::id());
        let lockkit = Started::new(&mut home.lockkit(["run", "a", "--", "sleep", &mark]));
        // From before the handlers are set to after the command's start: some 10 ms.
        std::thread::sleep(Duration::from_micros(500 * step));
        lockkit.send(Signal::KILL);
        drop(lockkit);
        eventually("the end of the command", || {
            alive().iter().all(|process| !process.arguments().contains(&mark)).then_some(())
        });
        assert_eq!(done(home.run(&["--timeout", "10s", "a"], "exit 0")).status, 0, "the lock is free again");
    }
}

#[test]
fn the_watcher_keeps_nothing_open_but_its_pipe_and_the_lock() {
    let home = Home::new();
    let mut shell = home.command("sh");
    shell.args([
        "-c",
        "exec 9<\"$LOCKKIT\"; exec \"$LOCKKIT\" run a -- sh -c 'echo started; exec sleep 1000'",
    ]);
    let lockkit = Started::until_started(&mut shell);
    let numbers =
        |process: &Process| process.descriptors().into_iter().map(|(number, _)| number).collect::<Vec<_>>();
    let watcher = watcher_of(lockkit.pid()).unwrap();
    // Closing is the first thing that it does, and may be yet to come.
    eventually("nothing else", || (numbers(&watcher) == [0, 1, 2]).then_some(()));
    assert!(watcher.descriptors()[0].1.starts_with("pipe:"));
    assert!(watcher.descriptors()[1].1.ends_with("/a.lock"), "{:?}", watcher.descriptors());
    assert_ne!(watcher.group, command_of(lockkit.pid()).group);
    // The command gets what was meant for it, and nothing of ours.
    let command = command_of(lockkit.pid());
    assert!(numbers(&command).contains(&9));
    for (_, ours) in &watcher.descriptors()[..2] {
        assert!(
            command.descriptors().iter().all(|(_, target)| target != ours),
            "{:?}",
            command.descriptors()
        );
    }
}

#[test]
fn nothing_is_left_behind_by_a_job_that_ends() {
    let home = Home::new();
    let mut job = home.run(&["a"], "echo started; read line");
    let mut lockkit = Started::until_started(job.stdin(Stdio::piped()));
    let watcher = watcher_of(lockkit.pid()).unwrap().pid;
    lockkit.close_stdin();
    assert_eq!(lockkit.done().status, 1, "read has found the end of its input");
    eventually("the end of the watcher", || {
        alive().iter().all(|process| process.pid != watcher).then_some(())
    });
}
