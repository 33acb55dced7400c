//! The conformance suite on lock files.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit_conformance::{
    AnyBackend, ClientLink, Entry, Harness, Hook, Sharing, Store, StoreFault, WallClock,
};
use lockkit_core::{
    LockName,
    backend::{Backend, BackendInfo, Promises},
};
use lockkit_file::{FileBackend, FileConfig};
use lockkit_testbed::{ServerClock, SmallDisk};
use tempfile::{NamedTempFile, TempDir};
use tokio::time::{Instant, sleep};

/// The folder of this process's open files.
const OPEN_FILES: &str = "/proc/self/fd";

/// Pause between two looks at a file that is locked; as short as the first one of a waiter.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Size of a disk for tests that fill it.
const DISK_BYTES: u64 = 1 << 20;

fn main() -> ExitCode {
    lockkit_conformance::main(FileHarness::default())
}

#[derive(Debug, Default)]
struct FileHarness {
    shared: OnceLock<Arc<dyn Store>>,
}

impl Harness for FileHarness {
    fn name(&self) -> String {
        "file".to_owned()
    }

    fn info(&self) -> BackendInfo {
        FileBackend::new(FileConfig::new("/").unwrap()).info()
    }

    fn promises(&self) -> Promises {
        FileBackend::new(FileConfig::new("/").unwrap()).promises()
    }

    /// A waiter notices the end of a process by its next poll.
    fn expiry_delay(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn hooks(&self) -> Vec<Hook> {
        let mut hooks = vec![
            Hook::Processes,
            Hook::BareNotification,
            Hook::DeleteEntries,
            Hook::WriteJunk,
            Hook::WallClock,
            Hook::Contents,
        ];
        if Path::new(OPEN_FILES).exists() {
            hooks.extend([Hook::Counts, Hook::Watched]);
        }
        if no_small_disk().is_none() {
            hooks.push(Hook::FullDisk);
        }
        hooks
    }

    fn why_not(&self, hook: Hook) -> Option<String> {
        match hook {
            Hook::FullDisk => no_small_disk().clone(),
            Hook::Counts | Hook::Watched => Some(format!("there is no {OPEN_FILES}")),
            _ => None,
        }
    }

    fn parallel(&self) -> usize {
        8
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        Ok(match sharing {
            Sharing::Own if no_small_disk().is_none() => {
                Arc::new(Folder::OnDisk(SmallDisk::mount(DISK_BYTES)?))
            }
            Sharing::Shared => {
                Arc::clone(self.shared.get_or_init(|| Arc::new(Folder::Plain(tempfile::tempdir().unwrap()))))
            }
            _ => Arc::new(Folder::Plain(tempfile::tempdir()?)),
        })
    }

    fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        Ok(Box::new(ServerClock::new()?))
    }

    fn may_stay(&self, entry: &Entry) -> Option<&'static str> {
        match Path::new(&entry.place).extension()?.to_str()? {
            "lock" => {
                Some("it holds the last token, and deleting it could delete the file of the next holder")
            }
            "holder" => Some("the next holder reuses it"),
            "record" => Some("it outlives every hold; the next record replaces it"),
            _ => None,
        }
    }

    /// A file for the lock, its holder and its record.
    fn left_per_lock(&self) -> usize {
        3
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        Ok(AnyBackend::new(FileBackend::new(FileConfig::new(address)?)))
    }
}

/// Returns why a small disk cannot be mounted, if so.
fn no_small_disk() -> &'static Option<String> {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    WHY_NOT.get_or_init(SmallDisk::unavailable_reason)
}

/// A folder of lock files.
#[derive(Debug)]
enum Folder {
    Plain(TempDir),
    OnDisk(SmallDisk),
}

impl Folder {
    fn locks(&self) -> PathBuf {
        match self {
            Self::Plain(folder) => folder.path().join("locks"),
            Self::OnDisk(disk) => disk.path().join("locks"),
        }
    }

    /// Returns the files of this lock.
    fn files_of(&self, name: &LockName) -> Result<Vec<PathBuf>> {
        const NAME_BYTES_MAX: usize = 200;
        let start = name.encode(NAME_BYTES_MAX);
        let entries = fs::read_dir(self.locks())?.map(|entry| Ok(entry?.path()));
        let is_of = |path: &Path| path.file_stem().is_some_and(|stem| stem.to_string_lossy() == *start);
        let all = entries.collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().filter(|path| is_of(path)).collect())
    }
}

#[async_trait]
impl Store for Folder {
    fn backend(&self) -> Result<AnyBackend> {
        Ok(AnyBackend::new(FileBackend::new(FileConfig::new(self.locks())?)))
    }

    fn address(&self) -> Option<String> {
        self.locks().to_str().map(str::to_owned)
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match (&fault, self) {
            (StoreFault::FillDisk, Self::OnDisk(disk)) => disk.fill(),
            (StoreFault::EmptyDisk, Self::OnDisk(disk)) => disk.make_room(),
            (StoreFault::DeleteEntries(name), _) => {
                for file in self.files_of(name)? {
                    fs::remove_file(file)?;
                }
                Ok(())
            }
            (StoreFault::WriteJunk(name), _) => {
                let mut files = self.files_of(name)?.into_iter();
                let of_holder = files.find(|file| file.extension().is_some_and(|end| end == "holder"));
                Ok(fs::write(of_holder.context("no holder file")?, [0xff; 100_000])?)
            }
            _ => fault.unsupported(),
        }
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        anyhow::bail!("a folder has no link that a fault could disturb")
    }

    async fn entries(&self, _: &LockName) -> Result<Vec<String>> {
        anyhow::bail!("lock files stay, because they hold the tokens")
    }

    /// Files notify nobody: what takes the time is to look again and again.
    async fn bare_notification(&self) -> Result<Duration> {
        let locked = NamedTempFile::new()?;
        let looking = locked.reopen()?;
        locked.as_file().lock()?;
        let (looks, looked) = tokio::sync::oneshot::channel();
        let look = tokio::spawn(async move {
            let mut looks = Some(looks);
            while looking.try_lock().is_err() {
                // The receiver is gone when the case has failed.
                let _ = looks.take().map(|looks| looks.send(()));
                sleep(LOOK_PAUSE).await;
            }
            Instant::now()
        });
        looked.await?;
        let start = Instant::now();
        locked.as_file().unlock()?;
        Ok(look.await?.duration_since(start))
    }

    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        Ok(BTreeMap::from([("open files", self.watched().await?.len() as u64)]))
    }

    /// Returns the files of the folder that this process has open.
    async fn watched(&self) -> Result<Vec<String>> {
        let folder = self.locks();
        let open = fs::read_dir(OPEN_FILES)?.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let ours = open.filter(|place| place.starts_with(&folder));
        Ok(ours.map(|place| place.to_string_lossy().into_owned()).collect())
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        let entry =
            |file: std::io::Result<fs::DirEntry>| Ok(Entry::new(file?.file_name().to_string_lossy(), false));
        fs::read_dir(self.locks())?.map(entry).collect()
    }

    async fn requests(&self) -> Result<u64> {
        anyhow::bail!("a file system does not count requests")
    }
}
