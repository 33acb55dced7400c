//! Copies of the project to which mutations are applied.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, TryLockError},
    path::PathBuf,
    process::{Command, Output},
};

use anyhow::{Context, Result, bail};

use super::patch::Patch;
use crate::project::Project;

/// The copies. They remain between runs, and only files that differ are written, so that cargo rebuilds only changes.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    /// Contains one mutation at a time.
    pub(super) plain: Project,
    /// Contains all mutations that can be switched.
    pub(super) switched: Project,
    /// Held while this run works on the copies.
    lock: File,
}

/// One file before and after a patch.
#[derive(Debug)]
pub(super) struct FileChange {
    /// Below the root of the project.
    pub(super) path: PathBuf,
    /// `None`: the patch creates this file.
    pub(super) before: Option<String>,
    /// `None`: the patch deletes it.
    pub(super) after: Option<String>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A child that another thread has forked, and that runs no other program yet, has the file open too.
        let _ = self.lock.unlock();
    }
}

impl Scratch {
    /// Makes copies below the project's `target`.
    pub(super) fn of(project: &Project) -> Result<Self> {
        let folder = project.root().join("target/mutate");
        for tree in ["plain", "switched", "reached"] {
            fs::create_dir_all(folder.join(tree))?;
        }
        // Git does not accept a symbolic link as a ceiling.
        let folder = folder.canonicalize()?;
        let lock = File::create(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another `cargo xtask mutate` is running in {}", folder.display())
            }
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the scratch copies"),
        }
        let scratch = Self {
            plain: Project::at(&folder.join("plain")),
            switched: Project::at(&folder.join("switched")),
            folder,
            lock,
        };
        scratch.restore(project)?;
        Ok(scratch)
    }

    /// Makes the plain copy equal to the project again.
    pub(super) fn restore(&self, project: &Project) -> Result<()> {
        make_equal(&self.plain, project, &BTreeMap::new())
    }

    /// Applies a patch to the plain copy. Returns false if it does not apply any more: lines may have moved, but the
    /// context must be the same.
    pub(super) fn apply(&self, patch: &Patch) -> Result<bool> {
        let output = self.git(&["apply", "--whitespace=nowarn"], patch)?;
        print!("{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.status.success())
    }

    /// Returns what a patch changes in the plain copy, and leaves the copy unchanged; `None` if the patch does not
    /// apply.
    pub(super) fn changes(&self, patch: &Patch) -> Result<Option<Vec<FileChange>>> {
        let output = self.git(&["apply", "--numstat", "-z"], patch)?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        let paths = listed.split('\0').filter_map(|line| line.splitn(3, '\t').nth(2)).map(PathBuf::from);
        let read = |path: &PathBuf| fs::read_to_string(self.plain.root().join(path)).ok();
        let before: Vec<_> = paths.map(|path| (read(&path), path)).collect();
        if before.is_empty() || !self.apply(patch)? {
            return Ok(None);
        }
        let mut changes = Vec::new();
        for (before, path) in before {
            let after = read(&path);
            let place = self.plain.root().join(&path);
            match &before {
                Some(text) => fs::write(place, text)?,
                None => fs::remove_file(place)?,
            }
            changes.push(FileChange { path, before, after });
        }
        Ok(Some(changes))
    }

    fn git(&self, arguments: &[&str], patch: &Patch) -> Result<Output> {
        // The ceiling hides the repository from git. Inside of a repository, git would silently skip the patch's paths.
        Command::new("git")
            .args(arguments)
            .arg(patch.path.canonicalize()?)
            .current_dir(self.plain.root())
            .env("GIT_CEILING_DIRECTORIES", &self.folder)
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .output()
            .context("cannot start git")
    }

    /// Returns a call of cargo in a copy.
    pub(super) fn cargo(&self, copy: &Project, arguments: &str) -> Command {
        let mut cargo = copy.cargo(arguments);
        cargo.env("CARGO_TARGET_DIR", self.folder.join("build"));
        cargo
    }

    /// The file for the output of a trial.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// The file whose existence shows that a mutation was reached.
    pub(super) fn reached(&self, name: &str) -> PathBuf {
        self.folder.join("reached").join(name)
    }
}

/// Makes `copy` equal to the project, except for the files of `instead`, which may be new.
pub(super) fn make_equal(
    copy: &Project,
    project: &Project,
    instead: &BTreeMap<PathBuf, String>,
) -> Result<()> {
    let mut wanted: BTreeSet<PathBuf> = project.files()?.into_iter().collect();
    wanted.extend(instead.keys().cloned());
    for path in copy.files()?.iter().filter(|path| !wanted.contains(*path)) {
        fs::remove_file(copy.root().join(path))?;
    }
    for path in wanted {
        let (from, to) = (project.root().join(&path), copy.root().join(&path));
        let content = match instead.get(&path) {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?,
        };
        if fs::read(&to).is_ok_and(|copied| copied == content) {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(copy.root()))?;
        fs::write(&to, content).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}
