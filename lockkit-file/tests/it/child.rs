//! Child processes of the tests: this test binary in another role.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead, Write},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use lockkit_core::LockClient;
use lockkit_file::{FileBackend, FileConfig};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{ChildStdout, Command},
};

use crate::{grant, session, soon, try_client};

const ROLE: &str = "LOCKKIT_TEST_ROLE";
const FOLDER: &str = "LOCKKIT_TEST_FOLDER";
const ROUNDS: &str = "LOCKKIT_TEST_ROUNDS";

/// Prefix of the lines for the parent, which distinguishes them from those of the test harness.
const MARK: &str = "lockkit: ";

/// The name of the lock that all children take.
pub(crate) const NAME: &str = "orders/42";

/// A process in one of the roles below; killed when dropped.
pub(crate) struct Child {
    process: tokio::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Takes the lock, prints `held TOKEN`, releases it on request, and prints `released`.
    pub(crate) fn holder(folder: &Path) -> Self {
        Self::spawn(command("hold", folder))
    }

    /// Like `holder`, but first starts a child that outlives it, and prints `child PID`.
    pub(crate) fn holder_with_child(folder: &Path) -> Self {
        Self::spawn(command("hold with child", folder))
    }

    /// Like `holder_with_child`; the child has inherited the locked file.
    pub(crate) fn holder_with_heir(folder: &Path) -> Self {
        Self::spawn(command("hold with heir", folder))
    }

    /// Leads with the value `child`, prints `held TOKEN`, and lasts until it is killed.
    pub(crate) fn leader(folder: &Path) -> Self {
        Self::spawn(command("lead", folder))
    }

    /// Takes the lock, and writes the records `1`, `2` and so on, each with as many bytes more, until it is killed.
    /// Prints each number after it was written.
    pub(crate) fn writer(folder: &Path) -> Self {
        Self::spawn(command("write records", folder))
    }

    /// Takes the lock repeatedly and creates a probe file while it holds it. Prints `token TOKEN` each time, or
    /// `overlap`.
    pub(crate) fn racer(folder: &Path, rounds: usize) -> Self {
        let mut command = command("race", folder);
        command.env(ROUNDS, rounds.to_string());
        Self::spawn(command)
    }

    /// Waits for many held locks at once. Prints `threads COUNT`, its maximum in some seconds without those
    /// that were there for less than a tenth of a second, and `processor MILLISECONDS`, its processor time in these seconds.
    pub(crate) fn waiter_for_many(folder: &Path, names: usize) -> Self {
        let mut command = command("wait for many", folder);
        command.env(ROUNDS, names.to_string());
        Self::spawn(command)
    }

    /// Takes the lock once as a user other than root; prints `held` or `error KIND: TEXT`.
    pub(crate) fn unprivileged(folder: &Path) -> Self {
        let mut command = command_of(&readable_copy(folder), "hold", folder);
        if rustix::process::geteuid().is_root() {
            const NOBODY: u32 = 65534;
            command.uid(NOBODY).gid(NOBODY);
        }
        Self::spawn(command)
    }

    /// Takes the lock once in a process that cannot write another byte to any file.
    pub(crate) fn without_room(folder: &Path) -> Self {
        let exe = env::current_exe().unwrap();
        let mut command = Command::new("sh");
        // With the signal ignored, writes fail with EFBIG.
        command
            .args(["-c", r#"trap "" XFSZ; ulimit -f 0; exec "$@""#, "sh"])
            .arg(exe)
            .args(harness_arguments());
        Self::spawn(with_role(command, "hold", folder))
    }

    fn spawn(mut command: Command) -> Self {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
        let mut process = spawned.unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Returns the next line for the parent.
    pub(crate) async fn line(&mut self) -> String {
        self.next_line().await.expect("the child ended without a line")
    }

    /// Returns all lines until the end of the process.
    pub(crate) async fn all_lines(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(line) = self.next_line().await {
            all.push(line);
        }
        all
    }

    async fn next_line(&mut self) -> Option<String> {
        loop {
            let line = soon("a line of the child", self.lines.next_line()).await.unwrap()?;
            if let Some(line) = line.strip_prefix(MARK) {
                return Some(line.to_owned());
            }
        }
    }

    /// Waits until it holds the lock. Returns the token.
    pub(crate) async fn held(&mut self) -> u64 {
        let line = self.line().await;
        line.strip_prefix("held ").and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    }

    /// Makes it release the lock and exit.
    pub(crate) async fn release(&mut self) {
        self.process.stdin.take().unwrap().write_all(b"release\n").await.unwrap();
        assert_eq!(self.line().await, "released");
    }

    /// Kills the process with SIGKILL, and waits until it has ended.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }
}

fn command(role: &str, folder: &Path) -> Command {
    command_of(&env::current_exe().unwrap(), role, folder)
}

fn command_of(exe: &Path, role: &str, folder: &Path) -> Command {
    let mut command = Command::new(exe);
    command.args(harness_arguments());
    with_role(command, role, folder)
}

fn with_role(mut command: Command, role: &str, folder: &Path) -> Command {
    command.env(ROLE, role).env(FOLDER, folder);
    command
}

fn harness_arguments() -> [&'static OsStr; 5] {
    ["child::body_of_the_children", "--exact", "--ignored", "--nocapture", "--quiet"].map(OsStr::new)
}

/// Copies this binary to where every user can read it; the target folder may be below a private home. Another process
/// writes the copy. If this process wrote it, a child of another test could inherit the file while it is open for
/// writing, and a file that is open for writing cannot be executed.
fn readable_copy(folder: &Path) -> PathBuf {
    let copy = folder.parent().unwrap().join("test-binary");
    let copied = std::process::Command::new("cp").arg(env::current_exe().unwrap()).arg(&copy).status();
    assert!(copied.unwrap().success());
    copy
}

#[tokio::test]
#[ignore = "no test: the body of the processes that the tests start"]
async fn body_of_the_children() {
    let role = env::var(ROLE).expect("started by hand, not by a test");
    let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
    match role.as_str() {
        "hold" => hold(&folder).await,
        "hold with child" => {
            leave_behind(Stdio::null());
            hold(&folder).await;
        }
        "hold with heir" => hold_with_heir(&folder).await,
        "lead" => {
            let election = try_client(&folder).await.unwrap().election(NAME).unwrap();
            let leadership = election.campaign("child").await.unwrap();
            say(format_args!("held {}", leadership.token()));
            std::future::pending().await
        }
        "write records" => write_records(&folder).await,
        "race" => race(&folder, env::var(ROUNDS).unwrap().parse().unwrap()).await,
        "wait for many" => {
            let names = env::var(ROUNDS).unwrap().parse().unwrap();
            std::thread::spawn(move || wait_for_many(&folder, names)).join().unwrap();
        }
        other => panic!("no role {other:?}"),
    }
}

async fn hold(folder: &Path) {
    let acquire = async { try_client(folder).await?.lock(NAME)?.acquire().await };
    match acquire.await {
        Ok(guard) => {
            say(format_args!("held {}", guard.token()));
            tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().next()).await.unwrap();
            guard.release().await.unwrap();
            say(format_args!("released"));
        }
        Err(error) => say(format_args!("error {:?}: {error}", error.kind())),
    }
}

async fn hold_with_heir(folder: &Path) {
    let backend = FileBackend::new(FileConfig::new(folder).unwrap());
    let client = LockClient::builder(backend.clone()).build().await.unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    leave_behind(backend.locked_file(guard.name()).unwrap().unwrap().into());
    say(format_args!("held {}", guard.token()));
    std::future::pending().await
}

async fn write_records(folder: &Path) {
    let session = session(folder).await;
    let grant = grant(&*session, None).await;
    for number in 1_usize.. {
        let record = format!("{number} {}", "x".repeat(number % 5000));
        assert!(session.records().unwrap().write(&grant, &record, Duration::ZERO).await.unwrap());
        say(format_args!("{number}"));
    }
}

/// Starts a process that outlives this one, and prints its id.
fn leave_behind(stdin: Stdio) {
    #[allow(clippy::zombie_processes, reason = "it is to outlive this process")]
    let child = std::process::Command::new("sleep").arg("1000").stdin(stdin).spawn().unwrap();
    say(format_args!("child {}", child.id()));
}

async fn race(folder: &Path, rounds: usize) {
    let lock = try_client(folder).await.unwrap().lock(NAME).unwrap();
    let probe = folder.join("probe");
    for _ in 0..rounds {
        let guard = lock.acquire().await.unwrap();
        // Fails if another holder has created it: then the lock does not exclude.
        if fs::File::create_new(&probe).is_err() {
            return say(format_args!("overlap"));
        }
        tokio::task::yield_now().await;
        fs::remove_file(&probe).unwrap();
        say(format_args!("token {}", guard.token()));
        guard.release().await.unwrap();
    }
}

/// Uses a separate runtime, whose threads end soon after their operations.
fn wait_for_many(folder: &Path, names: usize) {
    const WHILE: Duration = Duration::from_secs(3);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).thread_keep_alive(Duration::from_millis(10)).enable_all();
    runtime.build().unwrap().block_on(async {
        let client = try_client(folder).await.unwrap();
        for number in 0..names {
            let lock = client.lock(format!("many {number}")).unwrap();
            tokio::spawn(async move { lock.acquire().await });
        }
        // Long enough that all of them poll.
        tokio::time::sleep(WHILE).await;
        let (started, before) = (Instant::now(), processor_time());
        let mut threads = 0;
        while started.elapsed() < WHILE {
            // The fewest of some moments: on a busy machine, threads that have ended are still there at one of them.
            let mut fewest = usize::MAX;
            for _ in 0..10 {
                fewest = fewest.min(fs::read_dir("/proc/self/task").unwrap().count());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            threads = threads.max(fewest);
        }
        say(format_args!("threads {threads}"));
        say(format_args!("processor {}", (processor_time() - before).as_millis()));
    });
}

/// Returns the processor time of this process.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.try_into().unwrap(), used.tv_nsec.try_into().unwrap())
}

fn say(line: std::fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    // The harness may have begun a line.
    writeln!(stdout, "\n{MARK}{line}").unwrap();
    stdout.flush().unwrap();
}
