//! A copy of the project that may be broken on purpose.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::patch::Patch;
use crate::project::Project;

/// The copy stays between runs, and only files that differ are written: cargo then builds only what a mutation
/// touches.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    tree: Project,
    /// Held while this run works on the copy.
    _lock: File,
}

impl Scratch {
    /// A fresh copy below the project's `target`.
    pub(super) fn of(project: &Project) -> Result<Self> {
        let folder = project.root().join("target/mutate");
        fs::create_dir_all(folder.join("tree"))?;
        // Git takes no symbolic link as a ceiling.
        let folder = folder.canonicalize()?;
        let lock = File::create(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another `cargo xtask mutate` is at work in {}", folder.display())
            }
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the scratch copy"),
        }
        let scratch = Self { tree: Project::at(&folder.join("tree")), folder, _lock: lock };
        scratch.restore(project)?;
        Ok(scratch)
    }

    /// Makes the copy equal to the project again.
    pub(super) fn restore(&self, project: &Project) -> Result<()> {
        let wanted: BTreeSet<PathBuf> = project.files()?.into_iter().collect();
        for path in self.tree.files()?.iter().filter(|path| !wanted.contains(*path)) {
            fs::remove_file(self.tree.root().join(path))?;
        }
        for path in wanted {
            let (from, to) = (project.root().join(&path), self.tree.root().join(&path));
            let content = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            if fs::read(&to).is_ok_and(|copy| copy == content) {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(self.tree.root()))?;
            fs::write(&to, content).with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(())
    }

    /// Applies a patch; false when it does not fit the code any more. Lines may have moved, context may not differ.
    pub(super) fn apply(&self, patch: &Patch) -> Result<bool> {
        // Below the ceiling git sees no repository. In one, it would silently leave out paths of its top folder.
        let output = Command::new("git")
            .args(["apply", "--whitespace=nowarn"])
            .arg(patch.path.canonicalize()?)
            .current_dir(self.tree.root())
            .env("GIT_CEILING_DIRECTORIES", &self.folder)
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .output()
            .context("cannot start git")?;
        print!("{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.status.success())
    }

    /// A call of cargo in the copy.
    pub(super) fn cargo(&self, arguments: &str) -> Command {
        let mut cargo = self.tree.cargo(arguments);
        cargo.env("CARGO_TARGET_DIR", self.folder.join("build"));
        cargo
    }

    /// Where the output of a trial goes.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }
}
