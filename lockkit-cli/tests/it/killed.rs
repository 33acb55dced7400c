//! `lockkit run` is killed -9, or its watcher is.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use lockkit_testbed::eventually;

use crate::{
    harness::{Home, Started, done},
    processes::{Process, alive, blocks_all_signals, command_of, members, watcher_of},
};

/// A job of several processes that ignores signals.
pub(crate) const STUBBORN: &str =
    "trap '' TERM INT HUP; sleep 1000 & (trap '' TERM; sleep 1000 & wait) & echo started; wait";

/// A command that prints the process table at the moment of its start.
pub(crate) const SNAPSHOT: &str = "cat /proc/[0-9]*/stat 2>/dev/null; true";

/// Returns the members of the group that were alive in a snapshot.
pub(crate) fn members_in(snapshot: &str, group: i32) -> Vec<Process> {
    snapshot
        .lines()
        .filter_map(Process::parse)
        .filter(|process| process.group == group && process.is_alive())
        .collect()
}

#[test]
fn no_process_of_the_job_is_alive_when_the_next_holder_starts() {
    let home = Home::new();
    let mut waits = Vec::new();
    for _ in 0..10 {
        waits.push(kill_and_take_over(&home, &[]));
    }
    println!("kill -9 with file locks, time until the next job runs: {waits:.1?}");
}

/// Kills a holder with -9 while another one waits; returns the time until that one runs.
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
fn killed_watcher_is_replaced() {
    let home = Home::new();
    let holder = Started::until_started(&mut home.run(&["a"], STUBBORN));
    let group = command_of(holder.pid()).group;
    for _ in 0..3 {
        let watcher = watcher_of(holder.pid()).unwrap().pid;
        kill_process(Pid::from_raw(watcher).unwrap(), Signal::KILL).unwrap();
        let other =
            eventually("another watcher", || watcher_of(holder.pid()).filter(|other| other.pid != watcher));
        // Else the next holder would start while the job of a killed one still runs.
        eventually("the lock at the watcher", || {
            other.descriptors().iter().any(|(_, target)| target.ends_with("/a.lock")).then_some(())
        });
    }
    assert!(!members(group).is_empty());
    assert_eq!(done(home.run(&["--timeout", "0s", "a"], "")).status, 75, "still locked");
    holder.send(Signal::KILL);
    let next = done(home.run(&["a"], SNAPSHOT));
    assert_eq!(members_in(&next.stdout, group).len(), 0);
}

#[test]
fn watcher_killed_repeatedly_ends_the_job() {
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
fn command_does_not_outlive_lockkit_killed_at_any_moment() {
    let home = Home::new();
    for step in 0..40 {
        // An argument of no other process of this machine.
        let mark = format!("1000.{}{step:03}", std::process::id());
        let lockkit = Started::new(&mut home.lockkit(["run", "a", "--", "sleep", &mark]));
        // From before the handlers are installed to after the start of the command: some 10 ms.
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
fn watcher_keeps_only_its_pipe_and_the_lock_open() {
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
    // Closing is its first step, which may still be pending.
    eventually("nothing else", || (numbers(&watcher) == [0, 1, 2]).then_some(()));
    assert!(watcher.descriptors()[0].1.starts_with("pipe:"));
    assert!(watcher.descriptors()[1].1.ends_with("/a.lock"), "{:?}", watcher.descriptors());
    assert_eq!(watcher.group, watcher.pid, "it has its own group");
    let folder = std::fs::read_link(format!("/proc/{}/cwd", watcher.pid)).unwrap();
    assert_eq!(folder, std::path::Path::new("/"), "it would keep a file system mounted");
    assert!(blocks_all_signals(&format!("{}", watcher.pid)));
    // The command inherits the descriptors that are meant for it, and none of ours.
    let command = command_of(lockkit.pid());
    assert!(numbers(&command).contains(&9));
    let mut bare = home.command("sh");
    bare.args(["-c", "exec 9<\"$LOCKKIT\"; sh -c 'echo started; exec sleep 1000' & wait"]);
    let bare = Started::until_started(&mut bare);
    // Each may still be loading its program, and has a file of it open.
    eventually("the descriptors that it has without lockkit", || {
        (numbers(&command) == numbers(&command_of(bare.pid()))).then_some(())
    });
    for (_, ours) in &watcher.descriptors()[..2] {
        assert!(
            command.descriptors().iter().all(|(_, target)| target != ours),
            "{:?}",
            command.descriptors()
        );
    }
}

#[test]
fn command_does_not_start_without_the_go_ahead() {
    let home = Home::new();
    let ended = done(home.lockkit(["exec-at-gate", "0", "--", "echo", "ran"]));
    assert_eq!((ended.status, &*ended.stdout), (71, ""));
}

/// Stops a watcher, and fills its pipe, which it does not read any more.
#[cfg(feature = "redis")]
fn stop_and_fill(watcher: &Process) {
    use std::io::Write;

    kill_process(Pid::from_raw(watcher.pid).unwrap(), Signal::STOP).unwrap();
    let pipe = format!("/proc/{}/fd/0", watcher.pid);
    let mut pipe = std::fs::OpenOptions::new().write(true).open(pipe).unwrap();
    rustix::io::ioctl_fionbio(&pipe, true).unwrap();
    while pipe.write(&[b'\n'; 64]).is_ok() {}
}

#[cfg(feature = "redis")]
#[test]
fn stopped_watcher_is_replaced_and_delays_nothing() {
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start().unwrap();
    let options = ["--backend", &redis.url(), "--ttl", "12s", "a"];
    let mut job =
        Started::until_started(home.run(&options, "echo started; read line; exit 5").stdin(Stdio::piped()));
    let watcher = watcher_of(job.pid()).unwrap();
    stop_and_fill(&watcher);
    eventually("another watcher", || {
        let other = watcher_of(job.pid())?;
        (other.pid != watcher.pid).then_some(())
    });
    eventually("the end of the stopped one", || {
        alive().iter().all(|process| process.pid != watcher.pid).then_some(())
    });
    job.close_stdin();
    assert_eq!(job.done().status, 5);
}

/// It must not run on without a deadline that kills it.
#[cfg(feature = "redis")]
#[test]
fn job_whose_last_watcher_is_stopped_ends() {
    const WATCHERS_MAX: u32 = 8;
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start().unwrap();
    let options = ["--backend", &redis.url(), "--ttl", "12s", "a"];
    let mut holder = Started::until_started(&mut home.run(&options, "echo started; exec sleep 1000"));
    let mut watcher = watcher_of(holder.pid()).unwrap();
    for _ in 1..WATCHERS_MAX {
        kill_process(Pid::from_raw(watcher.pid).unwrap(), Signal::KILL).unwrap();
        watcher = eventually("another watcher", || {
            watcher_of(holder.pid()).filter(|other| other.pid != watcher.pid)
        });
    }
    stop_and_fill(&watcher);
    // The next renewal cannot be sent to it.
    eventually("the end of the job", || (!holder.runs()).then_some(()));
    let ended = holder.done();
    assert_eq!(ended.status, 71, "{}", ended.stderr);
    assert!(ended.message().contains("watcher"), "{}", ended.stderr);
}

#[test]
fn ended_job_leaves_nothing_behind() {
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
