//! Tests that need root, to become another user and to give files away. Without root every test is ignored, with the reason.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test program")]

#[path = "../it/harness.rs"]
#[allow(dead_code, reason = "the other test program uses the rest")]
mod harness;

use std::{
    fs,
    os::unix::fs::chown,
    process::{Command, ExitCode},
};

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};

use self::harness::{Home, Started, done};

/// Name and body of a test; it panics if it fails.
type Test = (&'static str, fn());

const TESTS: [Test; 6] = [
    ("user_without_a_home_must_name_a_store", user_without_a_home_must_name_a_store),
    ("home_of_another_user_is_left_alone", home_of_another_user_is_left_alone),
    ("file_of_another_user_is_refused", file_of_another_user_is_refused),
    ("member_of_another_user_keeps_the_lock", member_of_another_user_keeps_the_lock),
    ("zombie_of_another_user_keeps_no_lock", zombie_of_another_user_keeps_no_lock),
    (
        "member_that_another_process_table_hides_keeps_the_lock",
        member_that_another_process_table_hides_keeps_the_lock,
    ),
];

/// A user of Debian without rights and without a home.
const NOBODY: u32 = 65534;

fn main() -> ExitCode {
    let is_root = rustix::process::geteuid().is_root();
    let trial = |(name, test): Test| {
        Trial::ignorable_test(name, move || {
            if !is_root {
                return Ok(Completion::ignored_with("needs root to become another user"));
            }
            test();
            Ok(Completion::Completed)
        })
    };
    libtest_mimic::run(&Arguments::from_args(), TESTS.into_iter().map(trial).collect()).exit_code()
}

/// Returns the command without a store in its environment.
fn unset(mut command: Command) -> Command {
    command.env_remove("LOCKKIT_BACKEND");
    command
}

fn user_without_a_home_must_name_a_store() {
    let home = Home::new();
    let mut command = home.command("setpriv");
    command.args(["--reuid", &NOBODY.to_string(), "--clear-groups", env!("CARGO_BIN_EXE_lockkit")]);
    command.args(["run", "a", "--", "echo", "ran"]).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
    let refused = done(command);
    assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
    assert!(refused.message().contains("name a store with --backend"), "{}", refused.stderr);
}

fn home_of_another_user_is_left_alone() {
    let home = Home::new();
    let of_nobody = home.path("nobody");
    fs::create_dir(&of_nobody).unwrap();
    chown(&of_nobody, Some(NOBODY), None).unwrap();
    let mut command = unset(home.run(&["--local", "a"], "echo ran"));
    command.env_remove("XDG_STATE_HOME").env("HOME", &of_nobody);
    let refused = done(command);
    assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
    assert!(refused.message().contains("HOME is that of another user"), "{}", refused.stderr);
    assert_eq!(fs::read_dir(&of_nobody).unwrap().count(), 0);
}

fn file_of_another_user_is_refused() {
    let home = Home::new();
    let file = home.path("config/lockkit/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, format!("backend = \"{}\"\n", home.url("configured"))).unwrap();
    chown(&file, Some(NOBODY), None).unwrap();
    let refused = done(unset(home.run(&["a"], "echo ran")));
    assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
    assert!(refused.message().contains("belongs to user 65534"), "{}", refused.stderr);
}

/// Starts a job whose command ends at once, and leaves a process of another user for as long as `sleep` takes.
///
/// Root without the right to signal processes of other users stands for a user whose command is `sudo`.
fn job_with_member_of_another_user(home: &Home, sleep: &str) -> (Started, Pid) {
    let mut command = home.command("setpriv");
    command.args(["--bounding-set=-kill", "--inh-caps=-kill", env!("CARGO_BIN_EXE_lockkit")]);
    let member = format!("setpriv --reuid {NOBODY} --clear-groups sleep {sleep}");
    command.args(["run", "a", "--", "sh", "-c", &format!("{member} >/dev/null 2>&1 & echo $!")]);
    let mut job = Started::new(&mut command);
    let member = Pid::from_raw(job.line().parse().unwrap()).unwrap();
    (job, member)
}

fn member_of_another_user_keeps_the_lock() {
    let home = Home::new();
    let (mut job, member) = job_with_member_of_another_user(&home, "300");
    for _ in 0..3 {
        assert_eq!(done(home.run(&["-q", "--timeout", "1s", "a"], "")).status, 75);
    }
    assert!(job.runs());
    kill_process(member, Signal::KILL).unwrap();
}

/// As in a container whose first process does not reap.
fn zombie_of_another_user_keeps_no_lock() {
    // The orphan becomes a child of this process, which does not wait for it.
    set_child_subreaper(Some(getpid())).unwrap();
    let home = Home::new();
    let (_job, member) = job_with_member_of_another_user(&home, "0.1");
    assert_eq!(done(home.run(&["-q", "--timeout", "1min", "a"], "")).status, 0);
    let stat = fs::read_to_string(format!("/proc/{}/stat", member.as_raw_nonzero())).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
}

/// The program is in a pid namespace of its own, and sees the table of the one around it.
fn member_that_another_process_table_hides_keeps_the_lock() {
    let home = Home::new();
    let member = "(sleep 2; echo ended > ended) >/dev/null 2>&1 &";
    let script = format!("\"$LOCKKIT\" run a -- sh -c '{member}'; cat ended");
    let mut command = home.command("unshare");
    command.args(["--pid", "--fork", "sh", "-c", &script]);
    let ran = done(command);
    assert_eq!(ran.stdout, "ended\n", "{}", ran.stderr);
}
