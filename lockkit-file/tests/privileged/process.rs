//! Processes of other users: this test program in one of the roles below.

use std::{
    env,
    ffi::OsStr,
    fs::{File, Permissions, set_permissions},
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::{OnceLock, mpsc},
    thread,
};

use lockkit_conformance::direct::HANG;
use lockkit_core::LockClient;
use lockkit_file::{FileBackend, FileConfig};
use tempfile::TempDir;

use crate::hanging;

const ROLE: &str = "LOCKKIT_TEST_ROLE";

/// The name of the lock in tests with one lock.
pub(crate) const NAME: &str = "a";

/// A user without privileges, with a primary group of the same number.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) id: u32,
    /// A group that the user is also a member of.
    pub(crate) group: Option<u32>,
    pub(crate) umask: u32,
}

pub(crate) const ROOT: User = User { id: 0, group: None, umask: 0o022 };
pub(crate) const ALICE: User = User { id: 61_001, group: None, umask: 0o022 };
pub(crate) const BOB: User = User { id: 61_002, group: None, umask: 0o077 };

/// A group that is no user's primary group.
pub(crate) const BUILDERS: u32 = 62_000;

impl User {
    /// Returns the same user as a member of the builders.
    pub(crate) fn builder(self) -> Self {
        Self { group: Some(BUILDERS), ..self }
    }

    /// Takes the lock; the process holds it once it prints `held`.
    pub(crate) fn holder(self, folder: &Path) -> Process {
        Process::start(self, &["hold".as_ref(), folder.as_ref()])
    }

    /// Takes the lock and releases it. Returns `released`, or the error.
    pub(crate) fn takes(self, folder: &Path) -> String {
        let mut process = self.holder(folder);
        match process.line().as_str() {
            "held" => process.release(),
            error => error.to_owned(),
        }
    }

    /// Opens a file to read, which is enough to lock it, and locks it. Returns `locked`, or the error.
    pub(crate) fn locks_by_hand(self, file: &Path) -> String {
        Process::start(self, &["lock by hand".as_ref(), file.as_ref()]).line()
    }

    /// Tries each lock whose name it receives, once. Prints `done`, or the error.
    pub(crate) fn racer(self, folder: &Path) -> Process {
        Process::start(self, &["race".as_ref(), folder.as_ref()])
    }
}

/// A process in a role; killed when dropped.
pub(crate) struct Process {
    process: Child,
    stdin: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Process {
    pub(crate) fn start(user: User, role: &[&OsStr]) -> Self {
        let User { id, group, umask } = user;
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={id}"), format!("--regid={id}")]);
        match group {
            Some(group) => command.arg(format!("--groups={group}")),
            None => command.arg("--clear-groups"),
        };
        command.args(["sh", "-c", &format!("umask {umask:o}; exec \"$0\" \"$@\"")]).arg(program());
        command.args(&role[1..]).env(ROLE, role[0]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        thread::spawn(move || stdout.lines().try_for_each(|line| sender.send(line.unwrap())));
        Self { stdin: process.stdin.take().unwrap(), process, lines }
    }

    /// Returns the next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        self.lines.recv_timeout(HANG).expect("the process prints nothing")
    }

    /// Sends a line to it.
    pub(crate) fn send(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Makes it release the lock. Returns the next line.
    pub(crate) fn release(&mut self) -> String {
        self.send("release");
        self.line()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Copies this program to where every user can read it; the target folder may be below a private home. Another process
/// writes the copy: children could not execute a file that this process has open for writing.
fn program() -> &'static Path {
    static COPY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, copy) = COPY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let copy = folder.path().join("test-program");
        let copied = Command::new("cp").arg(env::current_exe().unwrap()).arg(&copy).status();
        assert!(copied.unwrap().success());
        (folder, copy)
    });
    copy
}

/// Plays the role that the environment names, if any.
pub(crate) fn play_role_if_asked() -> Option<ExitCode> {
    let role = env::var(ROLE).ok()?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let path = Path::new(&arguments[0]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match role.as_str() {
        "hold" => runtime.block_on(hold(path)),
        "lock by hand" => lock_by_hand(path),
        "race" => runtime.block_on(race(path)),
        "meet a hanging disk" => runtime.block_on(hanging::meet_a_hanging_disk(path)),
        other => panic!("no role {other:?}"),
    }
    Some(ExitCode::SUCCESS)
}

async fn client(folder: &Path) -> Result<LockClient, lockkit_core::Error> {
    LockClient::builder(FileBackend::new(FileConfig::new(folder)?)).build().await
}

async fn hold(folder: &Path) {
    match async { client(folder).await?.lock(NAME)?.acquire().await }.await {
        Ok(guard) => {
            say("held");
            tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().next()).await.unwrap();
            guard.release().await.unwrap();
            say("released");
        }
        Err(error) => say(&format!("error {:?}: {error}", error.kind())),
    }
}

fn lock_by_hand(file: &Path) {
    match File::open(file).map(|file| file.try_lock()) {
        Ok(Ok(())) => say("locked"),
        Ok(Err(error)) => say(&format!("error: {error}")),
        Err(error) => say(&format!("error {:?}", error.kind())),
    }
}

async fn race(folder: &Path) {
    let client = client(folder).await.unwrap();
    for name in std::io::stdin().lock().lines() {
        match client.lock(name.unwrap()).unwrap().try_acquire().await {
            Ok(_) => say("done"),
            Err(error) => say(&format!("{:?}: {error}", error.kind())),
        }
    }
}

pub(crate) fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").unwrap();
    stdout.flush().unwrap();
}
