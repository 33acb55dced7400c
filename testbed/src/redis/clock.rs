//! A wall clock that can be stepped.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf, process::Command, sync::Mutex, time::Duration};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// The library that is preloaded into a server to replace its wall clock. (Debian's libfaketime hangs redis-server.)
const SOURCE: &str = include_str!("clock.c");

/// The wall clock of one or more servers. It shows the machine's time until it is stepped.
///
/// A step takes effect at once. The servers' monotonic clock and the clocks of other processes do not change. Needs a C
/// compiler, `cc`.
///
/// ```no_run
/// use std::time::Duration;
///
/// let clock = lockkit_testbed::ServerClock::new()?;
/// let redis = lockkit_testbed::Redis::start_on(&clock)?;
/// redis.cli(&["SET", "k", "v", "PX", "60000"])?;
/// clock.step_forward(Duration::from_secs(61))?;
/// assert!(redis.keys("*")?.is_empty());
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct ServerClock {
    folder: TempDir,
    offset_micros: Mutex<(File, i64)>,
}

impl ServerClock {
    /// Makes a clock that shows the machine's time.
    ///
    /// # Errors
    ///
    /// When there is no C compiler, or its output cannot be written.
    pub fn new() -> Result<Self> {
        let folder = TempDir::with_prefix("lockkit-clock-")?;
        let source = folder.path().join("clock.c");
        std::fs::write(&source, SOURCE)?;
        let clock =
            Self { offset_micros: Mutex::new((File::create_new(folder.path().join("offset"))?, 0)), folder };
        clock.step(0)?;
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([clock.library(), source])
            .output()
            .context("cannot start the C compiler `cc` (Debian, Ubuntu: `apt-get install gcc libc6-dev`)")?;
        ensure!(
            compiled.status.success(),
            "clock.c does not compile: {}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        Ok(clock)
    }

    /// Steps the clock forward.
    ///
    /// # Errors
    ///
    /// When the time would be out of range.
    pub fn step_forward(&self, by: Duration) -> Result<()> {
        self.step(i64::try_from(by.as_micros())?)
    }

    /// Steps the clock back.
    ///
    /// # Errors
    ///
    /// As [`step_forward`](Self::step_forward).
    pub fn step_back(&self, by: Duration) -> Result<()> {
        self.step(-i64::try_from(by.as_micros())?)
    }

    /// Returns the environment variables that put a program on this clock, each as `NAME=VALUE`.
    pub fn environment(&self) -> [String; 2] {
        [
            format!("LD_PRELOAD={}", self.library().display()),
            format!("LOCKKIT_CLOCK={}", self.folder.path().join("offset").display()),
        ]
    }

    fn step(&self, micros: i64) -> Result<()> {
        let mut guard = self.offset_micros.lock().map_err(|_| anyhow::anyhow!("another step panicked"))?;
        let (file, offset) = &mut *guard;
        *offset = offset.checked_add(micros).context("the clock would be out of range")?;
        // The kernel writes eight bytes of one page at once: no server reads half of a step.
        Ok(file.write_all_at(&offset.to_ne_bytes(), 0)?)
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("clock.so")
    }
}
