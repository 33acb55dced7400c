//! A temporary lock folder, and programs that do not outlive the test.

#[cfg(feature = "redis")]
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

#[cfg(feature = "redis")]
use lockkit_testbed::HANG;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The notice of a store that has not answered for a second.
pub(crate) const WAITS: &str = "lockkit: waiting for the store to answer";

/// A program that ran for less than this had no reason for the notice.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// What every warning begins with.
const WARNING: &str = "lockkit: warning: ";

/// A temporary folder, with the user's state folder in it.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the URL of lock files in this folder; `locks` is the store of programs that get no other one.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("file://{}", self.path(name).display())
    }

    /// Returns `lockkit` with these arguments, in this folder.
    pub(crate) fn lockkit<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_lockkit"));
        command.args(arguments);
        command
    }

    /// Returns `lockkit run` with these options, and a shell script as its command.
    pub(crate) fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.lockkit(["run"]);
        command.args(options).args(["--", "sh", "-c", script]);
        command
    }

    /// Returns any program in this folder; shells find `lockkit` in LOCKKIT.
    pub(crate) fn command(&self, program: &str) -> Command {
        // Tests started by nohup, or in the background of a script, would pass ignored signals on.
        let mut command = Command::new("env");
        command.args(["--default-signal", program]);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("LOCKKIT_") {
                command.env_remove(variable);
            }
        }
        command
            .env("LOCKKIT_BACKEND", self.url("locks"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env_remove("RUST_LOG")
            .env("LOCKKIT", env!("CARGO_BIN_EXE_lockkit"))
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// The result of a program that has ended.
pub(crate) struct Done {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    /// Without the notice [`WAITS`] if the program ran for a second: a busy machine may be the reason.
    pub(crate) stderr: String,
}

impl Done {
    /// Returns the only message that is no warning; every message is one line with the program's name.
    pub(crate) fn message(&self) -> &str {
        let mut messages = self.lines().filter(|line| !line.starts_with(WARNING));
        let message = messages.next().unwrap_or_default();
        assert!(!message.is_empty() && messages.next().is_none(), "{:?}", self.stderr);
        message
    }

    /// Whether nothing but warnings was printed.
    pub(crate) fn is_silent(&self) -> bool {
        self.lines().all(|line| line.starts_with(WARNING))
    }

    /// Returns the warnings.
    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.lines().filter_map(|line| line.strip_prefix(WARNING)).collect()
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.stderr.lines().inspect(|line| assert!(line.starts_with("lockkit: "), "{:?}", self.stderr))
    }
}

/// Runs a program to its end.
pub(crate) fn done(mut command: Command) -> Done {
    Started::new(&mut command).done()
}

/// A running program; killed when dropped.
pub(crate) struct Started {
    child: Child,
    since: Instant,
    pub(crate) stdout: BufReader<ChildStdout>,
}

impl Started {
    pub(crate) fn new(command: &mut Command) -> Self {
        let since = Instant::now();
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, since, stdout }
    }

    /// Starts a program and waits for its first line, `started`.
    pub(crate) fn until_started(command: &mut Command) -> Self {
        let mut started = Self::new(command);
        let line = started.line();
        assert_eq!(line, "started", "{}", started.done().stderr);
        started
    }

    /// Returns the next line of its output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Whether it is still running.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Returns the lines of its stderr, instead of [`done`](Self::done).
    #[cfg(feature = "redis")]
    pub(crate) fn messages(&mut self) -> Messages {
        let stderr = BufReader::new(self.child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Messages(lines)
    }

    /// Waits until it ends, without its output.
    #[cfg(feature = "redis")]
    pub(crate) fn wait(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Waits until it ends.
    pub(crate) fn done(mut self) -> Done {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        if self.since.elapsed() >= NOTICE_DELAY {
            stderr = stderr.replace(&format!("{WAITS}\n"), "");
        }
        Done { status: status.code().unwrap_or(-1), stdout, stderr }
    }
}

/// The lines that a program writes to stderr.
#[cfg(feature = "redis")]
pub(crate) struct Messages(Receiver<String>);

#[cfg(feature = "redis")]
impl Messages {
    /// Returns the next line; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<String> {
        match self.0.recv_timeout(HANG) {
            Err(RecvTimeoutError::Timeout) => panic!("no line within {HANG:?}"),
            line => line.ok(),
        }
    }

    /// Waits for a line that contains this.
    pub(crate) fn until(&mut self, text: &str) {
        loop {
            let line = self.next().unwrap_or_else(|| panic!("no {text:?}"));
            if line.contains(text) {
                return;
            }
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a Redis server whose default user has this password.
#[cfg(feature = "redis")]
pub(crate) fn redis_with_password(password: &str) -> lockkit_testbed::Redis {
    let redis = lockkit_testbed::Redis::start().unwrap();
    redis.cli(&["CONFIG", "SET", "requirepass", password]).unwrap();
    redis
}
