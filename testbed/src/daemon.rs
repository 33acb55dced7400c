//! A server program with a folder of its own, which may be started and killed repeatedly.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::supervised::{KILLED, Supervised};

/// Longest time until a started server answers: three Java virtual machines on a busy machine take half a minute.
const START_MAX: Duration = Duration::from_secs(120);

/// Longest time until a server ends that is asked to.
const END_MAX: Duration = Duration::from_secs(60);

/// Pause between two health checks of a server that starts, or ends.
const START_POLL: Duration = Duration::from_millis(20);

/// A server's folder, and its process while it runs. Every server dereferences to its own.
#[derive(Debug)]
pub struct Daemon {
    /// In error messages and in the folder's name.
    name: &'static str,
    /// `None` before the start and after [`kill`](Self::kill). Declared before the folder, so that it is dropped first.
    server: Option<Supervised>,
    folder: TempDir,
    /// What ends the server, see [`Supervised::start`].
    signals: &'static str,
}

/// Finds a program on the PATH.
///
/// # Errors
///
/// When there is none; the error names the Debian package that contains it.
pub fn find_program(name: &str, debian_package: &str) -> Result<PathBuf> {
    which::which(name).with_context(|| {
        format!(
            "there is no program `{name}` on the PATH: install it \
             (Debian, Ubuntu: `apt-get install {debian_package}`)"
        )
    })
}

impl Daemon {
    /// Makes a daemon that is not started yet. Its folder is in memory where `/dev/shm` exists, because lock servers
    /// wait for the disk at every write.
    pub(crate) fn new(name: &'static str) -> Result<Self> {
        Self::new_in(name, Path::new("/dev/shm")).or_else(|_| Self::new_in(name, &std::env::temp_dir()))
    }

    /// As [`new`](Self::new), with its folder inside `place`.
    pub(crate) fn new_in(name: &'static str, place: &Path) -> Result<Self> {
        let folder = TempDir::with_prefix_in(format!("lockkit-{name}-"), place)?;
        Ok(Self { name, server: None, folder, signals: KILLED })
    }

    /// Ends the server with these signals, separated by blanks, instead of `KILL`. Together they must end it always.
    pub(crate) fn ended_by(self, signals: &'static str) -> Self {
        Self { signals, ..self }
    }

    /// Returns the folder of the server, for files that it should read.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of the server's data.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Returns the process id of the server; `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Supervised::pid)
    }

    /// Freezes the server (SIGSTOP), and returns when all its threads have stopped. Connections stay open, and nothing
    /// is answered.
    ///
    /// # Errors
    ///
    /// When the server is not running.
    pub fn pause(&self) -> Result<()> {
        self.running()?.freeze()
    }

    /// Lets a frozen server continue (SIGCONT).
    ///
    /// # Errors
    ///
    /// When the server is not running.
    pub fn resume(&self) -> Result<()> {
        self.running()?.unfreeze()
    }

    /// Whether the server is killed or frozen, so that a request would only time out.
    pub(crate) fn is_silent(&self) -> bool {
        self.server.as_ref().is_none_or(Supervised::is_frozen)
    }

    /// Kills the server as `kill -9` does; its data stays.
    ///
    /// # Errors
    ///
    /// When the watcher of the server cannot be reached.
    pub fn kill(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), Supervised::kill)
    }

    /// Asks the server to end (SIGTERM), and waits until it has.
    pub(crate) fn end_by_itself(&mut self) -> Result<()> {
        let (server, asked) = (self.running()?, Instant::now());
        server.ask_to_end()?;
        while !server.has_ended() {
            ensure!(asked.elapsed() < END_MAX, "{} does not end", self.name);
            std::thread::sleep(START_POLL);
        }
        self.kill()
    }

    /// Kills the server if it runs, and deletes all its data.
    pub(crate) fn lose_data(&mut self) -> Result<()> {
        self.kill()?;
        fs::remove_dir_all(self.data()).with_context(|| format!("cannot remove the data of {}", self.name))
    }

    /// Kills the server if it runs, and copies its data. The copy replaces an earlier one.
    pub(crate) fn back_up(&mut self) -> Result<()> {
        self.kill()?;
        replace_folder(&self.backup(), &self.data())
            .with_context(|| format!("cannot copy the data of {}", self.name))
    }

    /// Kills the server if it runs, and replaces its data by the copy.
    pub(crate) fn restore(&mut self) -> Result<()> {
        self.kill()?;
        replace_folder(&self.data(), &self.backup())
            .with_context(|| format!("cannot restore the data of {}", self.name))
    }

    fn backup(&self) -> PathBuf {
        self.folder().join("backup")
    }

    /// Starts the server, which must not be running, without waiting until it answers.
    pub(crate) fn launch(&mut self, program: &Path, arguments: &[String]) -> Result<()> {
        self.server = Some(Supervised::start(program, arguments, self.folder(), self.signals)?);
        Ok(())
    }

    /// Waits until a started server is healthy.
    pub(crate) fn wait_until(&self, endpoint: &str, is_healthy: impl Fn() -> bool) -> Result<()> {
        let started = Instant::now();
        while !is_healthy() {
            if self.running()?.has_ended() || started.elapsed() > START_MAX {
                let log = self.log_end();
                bail!("{} at {endpoint} does not become healthy; end of its log:\n{log}", self.name);
            }
            std::thread::sleep(START_POLL);
        }
        Ok(())
    }

    fn running(&self) -> Result<&Supervised> {
        self.server.as_ref().context("the server is not running")
    }

    fn log_end(&self) -> String {
        const LINES: usize = 20;
        let log = fs::read_to_string(self.folder().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

/// A server is its daemon: it is frozen and killed in the same way as all others.
macro_rules! derefs_to_its_daemon {
    ($server:ty) => {
        impl std::ops::Deref for $server {
            type Target = $crate::daemon::Daemon;

            fn deref(&self) -> &Self::Target {
                &self.daemon
            }
        }

        impl std::ops::DerefMut for $server {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.daemon
            }
        }
    };
}
pub(crate) use derefs_to_its_daemon;

/// Copies the folder `from` to `to`, which it replaces.
fn replace_folder(to: &Path, from: &Path) -> std::io::Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    copy_folder(to, from)
}

fn copy_folder(to: &Path, from: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    // etcd refuses a data folder that others may read.
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&target, &entry.path())?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
