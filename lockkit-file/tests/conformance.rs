//! The conformance suite on lock files.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, Fault, Harness, Hook, Link, Rounds, Sharing, Store, Time};
use lockkit_core::{
    LockName,
    backend::{Backend, BackendInfo},
};
use lockkit_file::{FileBackend, FileConfig};
use tempfile::TempDir;

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

    fn time(&self) -> Time {
        Time::Real
    }

    fn rounds(&self) -> Rounds {
        Rounds::Few
    }

    fn hooks(&self) -> Vec<Hook> {
        vec![Hook::Processes, Hook::DeleteEntries, Hook::WriteJunk]
    }

    fn parallel(&self) -> usize {
        8
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        let folder = || Arc::new(Folder(tempfile::tempdir().unwrap()));
        Ok(match sharing {
            Sharing::Shared => Arc::clone(self.shared.get_or_init(|| folder())),
            _ => folder(),
        })
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        Ok(AnyBackend::new(FileBackend::new(FileConfig::new(address)?)))
    }
}

/// A folder of lock files.
#[derive(Debug)]
struct Folder(TempDir);

impl Folder {
    fn locks(&self) -> PathBuf {
        self.0.path().join("locks")
    }

    /// The files of this lock, which is the one of its client.
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

    async fn inflict(&self, fault: Fault) -> Result<()> {
        match &fault {
            Fault::DeleteEntries(name) => {
                for file in self.files_of(name)? {
                    fs::remove_file(file)?;
                }
                Ok(())
            }
            Fault::WriteJunk(name) => {
                let mut files = self.files_of(name)?.into_iter();
                let of_holder = files.find(|file| file.extension().is_some_and(|end| end == "holder"));
                Ok(fs::write(of_holder.context("no holder file")?, [0xff; 100_000])?)
            }
            other => other.unsupported(),
        }
    }

    async fn link(&self) -> Result<Arc<dyn Link>> {
        anyhow::bail!("there is no way to a folder that could be disturbed")
    }

    async fn entries(&self, _: &LockName) -> Result<Vec<String>> {
        anyhow::bail!("lock files stay: they count the tokens")
    }

    async fn requests(&self) -> Result<u64> {
        anyhow::bail!("a file system does not count")
    }
}
