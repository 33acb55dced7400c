//! The program with a real etcd server.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use lockkit_testbed::{Etcd, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    exclusion::twenty,
    harness::{Home, Started, done},
    killed::{SNAPSHOT, STUBBORN, kill_and_take_over, members_in},
    processes::{command_of, members, watcher_of},
    secrets::assert_no_leak,
};

/// The ttl of locks whose end is waited for: a holder that a busy machine delays for three seconds keeps its lock.
const TTL: Duration = Duration::from_secs(8);

/// Delay that a busy machine may add. (The unit tests check exact moments.)
const BUSY: Duration = Duration::from_secs(2);

/// A new server, and a folder.
struct Server {
    home: Home,
    etcd: Etcd,
    url: String,
}

impl Server {
    fn start() -> Self {
        let etcd = Etcd::start().unwrap();
        Self { home: Home::new(), url: etcd.url(), etcd }
    }

    /// Returns the options of `lockkit run` for a short ttl on this server.
    fn options(&self) -> [&str; 4] {
        ["--backend", &self.url, "--ttl", "8s"]
    }

    /// Returns `lockkit run` of a shell script, under the lock `a`.
    fn run(&self, script: &str) -> Command {
        self.home.run(&["--backend", &self.url, "a"], script)
    }

    /// The same with a short ttl, whose end is waited for.
    fn run_briefly(&self, script: &str) -> Command {
        let [option, url, ttl, seconds] = self.options();
        self.home.run(&[option, url, ttl, seconds, "a"], script)
    }

    /// Returns the keys in the queue of the lock `a`.
    fn queue(&self) -> Vec<String> {
        self.etcd
            .keys("")
            .unwrap()
            .into_iter()
            .filter(|key| key.contains("a/") && !key.contains(":clients/"))
            .collect()
    }
}

#[test]
fn twenty_at_the_same_time_run_one_after_the_other() {
    let server = Server::start();
    twenty(&server.home, &["--backend", &server.url]);
}

#[test]
fn no_process_of_a_killed_holders_job_is_alive_when_the_next_starts() {
    let server = Server::start();
    let wait = kill_and_take_over(&server.home, &server.options());
    println!("kill -9 with etcd and a ttl of {TTL:?}, time until the next job runs: {wait:.1?}");
}

#[test]
fn frozen_server_ends_a_job_that_ignores_sigterm_before_the_lock() {
    frozen_while_runs(STUBBORN, |_| {});
}

#[test]
fn frozen_server_ends_a_stopped_job_before_the_lock() {
    frozen_while_runs("trap '' TERM; echo started; kill -STOP $$; sleep 1000", |_| {});
}

#[test]
fn frozen_server_ends_the_job_before_the_lock_without_the_watcher() {
    frozen_while_runs(STUBBORN, |lockkit| {
        let watcher = watcher_of(lockkit).unwrap().pid;
        kill_process(Pid::from_raw(watcher).unwrap(), Signal::STOP).unwrap();
    });
}

/// Freezes the server while a job runs and another one waits. No process of the first job is alive at its deadline, nor
/// when the second starts.
fn frozen_while_runs(script: &str, before: impl FnOnce(Pid)) {
    let server = Server::start();
    let holder = Started::until_started(&mut server.run_briefly(script));
    let group = command_of(holder.pid()).group;
    let next = Started::new(&mut server.run_briefly(SNAPSHOT));
    eventually("the next one in the queue", || (server.queue().len() == 2).then_some(()));
    before(holder.pid());
    server.etcd.pause().unwrap();
    // From here on, no renewal is acknowledged.
    let frozen = Instant::now();
    eventually("the end of the job", || members(group).is_empty().then_some(()));
    let took = frozen.elapsed();
    assert!(took < TTL + BUSY, "the lock may be gone after {TTL:?}, the job was after {took:?}");
    server.etcd.resume().unwrap();
    let ended = holder.done();
    assert_eq!(ended.status, 76, "{}", ended.stderr);
    assert!(ended.message().contains("ending the job"));
    let next = next.done();
    assert_eq!(next.status, 0, "{}", next.stderr);
    assert_eq!(members_in(&next.stdout, group).len(), 0);
}

#[test]
fn program_ends_with_the_job_although_the_server_is_frozen() {
    let server = Server::start();
    let holder = Started::until_started(&mut server.run_briefly("echo started; exec sleep 1000"));
    let group = command_of(holder.pid()).group;
    server.etcd.pause().unwrap();
    eventually("the end of the job", || members(group).is_empty().then_some(()));
    let over = Instant::now();
    let ended = holder.done();
    let took = over.elapsed();
    assert_eq!(ended.status, 76, "{}", ended.stderr);
    // A release or the end of a session would take until the lock's deadline and longer.
    assert!(took < TTL / 2, "{took:?}");
    println!("frozen server, time from the end of the job to that of lockkit: {took:.1?}");
    server.etcd.resume().unwrap();
}

#[test]
fn deleted_key_ends_the_job_at_once() {
    let server = Server::start();
    let script =
        "exec 2>/dev/null; trap 'echo terminated; exit 3' TERM; echo started; while :; do sleep 0.01; done";
    let mut holder = Started::until_started(&mut server.run(script));
    let key = server.queue().remove(0);
    let deleted = Instant::now();
    assert!(server.etcd.delete(&key).unwrap());
    assert_eq!(holder.line(), "terminated");
    println!("key deleted, time until SIGTERM: {:.1?}", deleted.elapsed());
    let ended = holder.done();
    assert_eq!(ended.status, 76);
    assert!(ended.message().contains("lost"), "{}", ended.stderr);
    assert_eq!(done(server.run("exit 0")).status, 0);
}

#[test]
fn job_of_a_stopped_lockkit_does_not_outlive_the_lock() {
    let server = Server::start();
    let holder = Started::until_started(&mut server.run_briefly(STUBBORN));
    let group = command_of(holder.pid()).group;
    holder.send(Signal::STOP);
    let next = done(server.run_briefly(SNAPSHOT));
    assert_eq!(members_in(&next.stdout, group).len(), 0);
    holder.send(Signal::CONT);
    let ended = holder.done();
    assert_eq!(ended.status, 76, "{}", ended.stderr);
}

#[test]
fn signal_ends_the_wait_and_leaves_nothing_in_the_queue() {
    let server = Server::start();
    let _holder = Started::until_started(&mut server.run("echo started; exec sleep 1000"));
    let waiter = Started::new(&mut server.run("echo ran"));
    eventually("the waiter in the queue", || (server.queue().len() == 2).then_some(()));
    let who = done(server.home.lockkit(["who", "--backend", &server.url, "a"])).stdout;
    assert!(
        who.contains("1. waits: host") && who.contains(&format!("pid {}", waiter.pid().as_raw_nonzero()))
    );
    waiter.send(Signal::INT);
    let ended = waiter.done();
    assert_eq!((ended.status, &*ended.stdout), (130, ""));
    assert_eq!(server.queue().len(), 1);
}

#[test]
fn second_signal_ends_the_withdrawal_from_a_frozen_server() {
    /// A busy machine may be too slow for a time limit.
    const TRIES: usize = 3;
    let is_quick = || {
        let server = Server::start();
        let _holder = Started::until_started(&mut server.run("echo started; exec sleep 1000"));
        let waiter = Started::new(&mut server.run("echo ran"));
        eventually("the waiter in the queue", || (server.queue().len() == 2).then_some(()));
        server.etcd.pause().unwrap();
        let begin = Instant::now();
        // Two that cannot count as one; either may be handled first.
        waiter.send(Signal::TERM);
        waiter.send(Signal::INT);
        let ended = waiter.done();
        assert!([130, 143].contains(&ended.status), "{}: {}", ended.status, ended.stderr);
        // A withdrawal that is waited for would take five seconds.
        begin.elapsed() < Duration::from_secs(4)
    };
    assert!((0..TRIES).any(|_| is_quick()), "the second signal is not handled");
}

#[test]
fn nested_lock_of_the_same_name_is_refused() {
    let server = Server::start();
    let inner = format!("\"$LOCKKIT\" run --backend '{}' a -- echo ran", server.url);
    assert_eq!(done(server.run(&inner)).status, 64);
}

#[test]
fn password_from_file_or_environment_does_not_leak() {
    let (home, mut etcd) = (Home::new(), Etcd::start().unwrap());
    let secret = "hunter2-but-longer";
    etcd.enable_auth("me", secret).unwrap();
    let url = format!("etcd://me@{}", etcd.endpoint());
    let with_secret = format!("etcd://me:{secret}@{}", etcd.endpoint());
    std::fs::write(home.path("password"), format!("{secret}\n")).unwrap();
    let script = "echo started; exec sleep 1000";

    let by_file = &mut home.run(&["--backend", &url, "--password-file", "password", "file"], script);
    assert_no_leak(&Started::until_started(by_file));
    let by_variable = &mut home.run(&["--backend", &url, "variable"], script);
    assert_no_leak(&Started::until_started(by_variable.env("LOCKKIT_PASSWORD", secret)));
    let by_url = &mut home.run(&["url"], script);
    assert_no_leak(&Started::until_started(by_url.env("LOCKKIT_BACKEND", with_secret)));

    let mut wrong = home.run(&["--backend", &url, "a"], "echo ran");
    wrong.env("LOCKKIT_PASSWORD", "wrong-guess");
    let refused = done(wrong);
    assert_eq!((refused.status, &*refused.stdout), (77, ""), "{}", refused.stderr);
    assert!(!refused.message().contains("wrong-guess"));
}

#[test]
fn unreachable_server_is_69() {
    let home = Home::new();
    let away = done(home.run(&["--backend", "etcd://127.0.0.1:1", "--timeout", "1s", "a"], "echo ran"));
    assert_eq!((away.status, &*away.stdout), (69, ""), "{}", away.stderr);
    assert!(!away.message().is_empty());
}
