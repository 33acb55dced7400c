//! What is printed on stderr while a command works.

#[cfg(feature = "redis")]
use std::{
    io::{PipeReader, PipeWriter, Write},
    process::{Command, Stdio},
};

use crate::{
    harness::{Home, Started, done},
    terminal::Terminal,
};

#[test]
fn the_wait_names_its_holder_once_and_quiet_does_not() {
    let home = Home::new();
    let holder =
        Started::until_started(&mut home.run(&["--label", "x", "a"], "echo started; exec sleep 1000"));
    let late = done(home.run(&["--timeout", "8s", "a"], ""));
    let lines: Vec<&str> = late.stderr.lines().collect();
    assert!(lines.len() == 2 && late.status == 75, "{lines:?}");
    assert!(lines[0].starts_with("lockkit: waiting for lock \"a\": held by host"), "{lines:?}");
    assert!(lines[0].contains(&format!("pid {}", holder.pid().as_raw_nonzero())), "{lines:?}");
    let quiet = done(home.run(&["-q", "--timeout", "5s", "a"], ""));
    assert!(quiet.status == 75 && quiet.message().contains("not acquired"), "{}", quiet.stderr);
    let short = done(home.run(&["--timeout", "0s", "a"], ""));
    assert!(short.message().contains("not acquired"), "{}", short.stderr);
}

#[test]
fn library_messages_are_printed_as_asked() {
    let home = Home::new();
    let printed = |options: &[&str], filter: &str| {
        let mut command = home.lockkit(options);
        command.args(["run", "a", "--", "true"]).env("RUST_LOG", filter);
        let done = done(command);
        assert_eq!(done.status, 0, "{}", done.stderr);
        done.stderr
    };
    assert_eq!(printed(&[], ""), "");
    assert_eq!(printed(&["-q"], "lockkit=debug"), "");
    let info = printed(&["-v"], "");
    assert!(info.contains("lockkit: info: session opened") && !info.contains("debug"), "{info}");
    for debug in [printed(&["-vv"], "off"), printed(&[], "lockkit=debug")] {
        assert!(debug.contains("lockkit: debug: ") && debug.contains("lockkit: info: "), "{debug}");
        assert!(debug.lines().all(|line| line.starts_with("lockkit: ")), "{debug}");
    }
    assert!(printed(&[], "=/=").contains("RUST_LOG is not a filter"));
}

#[test]
fn holder_that_others_cannot_see_is_warned_of() {
    let home = Home::new();
    std::fs::create_dir_all(home.path("locks/a.holder")).unwrap();
    let ran = done(home.run(&["a"], "exit 3"));
    let warnings = ran.warnings();
    assert_eq!((ran.status, warnings.len()), (3, 1), "{}", ran.stderr);
    assert!(warnings[0].contains("inspections will not show this holder"), "{warnings:?}");
}

#[test]
fn colours_are_for_terminals_without_no_color() {
    for (variables, warning) in [
        ("TERM=xterm", "lockkit: \u{1b}[33mwarning\u{1b}[0m: no store"),
        ("TERM=xterm NO_COLOR=1", "lockkit: warning: no store"),
        ("TERM=dumb", "lockkit: warning: no store"),
    ] {
        let home = Home::new();
        let mut terminal =
            Terminal::with_shell(&home, &format!("unset LOCKKIT_BACKEND; {variables} \"$LOCKKIT\" who a"));
        terminal.shows(warning);
        terminal.shows("is free");
    }
}

#[cfg(feature = "redis")]
#[test]
fn warnings_of_the_library_are_lines_unless_quiet() {
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]).unwrap();
    let ran = done(home.run(&["--backend", &redis.url(), "a"], "exit 3"));
    let warnings = ran.warnings();
    assert_eq!((ran.status, warnings.len(), ran.stderr.lines().count()), (3, 1, 1), "{}", ran.stderr);
    assert!(warnings[0].contains("set maxmemory-policy to noeviction (policy: allkeys-lru)"), "{warnings:?}");
    let quiet = done(home.run(&["-q", "--backend", &redis.url(), "a"], "exit 3"));
    assert_eq!((quiet.status, &*quiet.stderr), (3, ""));
}

#[cfg(feature = "redis")]
#[test]
fn repeated_warning_is_printed_if_asked_for() {
    const WARNING: &str = "no new session yet";
    let home = Home::new();
    let options = ["--backend", "redis://127.0.0.1:1", "--timeout"];
    let once = done(home.run(&[&options[..], &["2", "a"]].concat(), ""));
    assert_eq!((once.status, once.stderr.matches(WARNING).count()), (69, 1), "{}", once.stderr);
    let mut each = Started::new(&mut home.run(&[&["-v"][..], &options, &["20", "a"]].concat(), ""));
    let mut messages = each.messages();
    messages.until(WARNING);
    messages.until(WARNING);
}

/// Others wait for the end of the lease then.
#[cfg(feature = "redis")]
#[test]
fn release_that_is_not_confirmed_is_reported() {
    let home = Home::new();
    let mut redis = lockkit_testbed::Redis::start().unwrap();
    let options = ["--backend", &redis.url(), "--ttl", "20s", "a"];
    let mut job =
        Started::until_started(home.run(&options, "echo started; read line; exit 5").stdin(Stdio::piped()));
    redis.kill().unwrap();
    job.close_stdin();
    let ended = job.done();
    assert_eq!(ended.status, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("the lock expires within 20s"), "{}", ended.stderr);
}

#[cfg(feature = "redis")]
#[test]
fn the_wait_says_the_place_in_the_queue_and_its_changes() {
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start().unwrap();
    let run = |script: &str| {
        let mut command = home.run(&["--backend", &redis.url(), "a"], script);
        command.stdin(Stdio::piped());
        command
    };
    let mut holder = Started::until_started(&mut run("echo started; read enough"));
    let mut first = Started::new(&mut run("echo started; read enough"));
    let queue = || done(home.lockkit(["who", "--backend", &redis.url(), "a"])).stdout;
    lockkit_testbed::eventually("the first waiter", || queue().contains("1. waits").then_some(()));
    let mut second = Started::new(&mut run("exit 4"));
    let mut messages = second.messages();
    let mut line = messages.next().unwrap();
    // On a busy machine, the store may take a second to answer.
    if line == crate::harness::WAITS {
        line = messages.next().unwrap();
    }
    assert!(line.contains(&format!("pid {}", holder.pid().as_raw_nonzero())), "{line}");
    assert!(line.ends_with("; 1 before you"), "{line}");
    holder.close_stdin();
    assert_eq!(first.line(), "started");
    let line = messages.next().unwrap();
    assert!(line.contains(&format!("pid {}", first.pid().as_raw_nonzero())), "{line}");
    assert!(line.ends_with("; you are next"), "{line}");
    first.close_stdin();
    assert_eq!(messages.next(), None);
    assert_eq!(second.wait(), 4);
}

/// Returns a pipe that takes nothing more.
#[cfg(feature = "redis")]
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(&[b'\n'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    (reader, full)
}

/// The library reports from the thread that renews the lock.
#[cfg(feature = "redis")]
#[test]
fn stderr_that_nobody_reads_does_not_delay_renewals() {
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start().unwrap();
    let (reader, full) = full_pipe();
    // More than three lifetimes, each long enough for a busy machine.
    let mut command: Command =
        home.run(&["-vvv", "--ttl", "8s", "--backend", &redis.url(), "a"], "sleep 26; exit 5");
    let mut run = Started::new(command.stderr(full));
    drop(command);
    lockkit_testbed::eventually("the end of the job", || (!run.runs()).then_some(()));
    assert_eq!(run.wait(), 5);
    drop(reader);
}

/// Other waiters are behind the claim.
#[cfg(feature = "redis")]
#[test]
fn stderr_that_nobody_reads_does_not_delay_the_end_of_a_wait() {
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start().unwrap();
    redis.cli(&["SET", "a", "another program's"]).unwrap();
    let (reader, full) = full_pipe();
    let mut command = home.run(&["-q", "--backend", &redis.url(), "a"], "echo ran");
    let mut run = Started::new(command.stderr(full));
    drop(command);
    let waiters = || redis.cli(&["ZCARD", "lockkit:{a}:queue"]).unwrap().number().unwrap();
    lockkit_testbed::eventually("the claim in the queue", || (waiters() == 1).then_some(()));
    run.send(rustix::process::Signal::TERM);
    lockkit_testbed::eventually("the end of the wait", || (!run.runs()).then_some(()));
    assert_eq!((run.wait(), waiters()), (143, 0));
    drop(reader);
}

/// The lock is broken long before its deadline: the next holder may have it.
#[cfg(feature = "redis")]
#[test]
fn stderr_that_nobody_reads_does_not_delay_the_end_of_the_job() {
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start().unwrap();
    let (reader, full) = full_pipe();
    let url = redis.url();
    let options = ["-q", "--backend", &url, "a"];
    let mut command = home.run(&options, "echo started; exec sleep 1000");
    let mut run = Started::until_started(command.stderr(full));
    drop(command);
    let broken = done(home.lockkit(["break", "--yes", "--backend", &url, "a"]));
    assert_eq!(broken.status, 0, "{}", broken.stderr);
    lockkit_testbed::eventually("the end of the job", || (!run.runs()).then_some(()));
    assert_eq!(run.wait(), 76);
    drop(reader);
}
