//! The tree that the chores work on, and how cargo is called in it.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write, stdout},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{report::Tests, setup};

/// Folders that are no part of the project's text, wherever they stand.
const FOREIGN_FOLDERS: [&str; 2] = [".git", "target"];

/// Cargo's variable.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// A checkout of the project.
#[derive(Debug)]
pub(crate) struct Project {
    root: PathBuf,
}

impl Project {
    /// The checkout that this program was called in.
    pub(crate) fn here() -> Self {
        // Cargo sets it at run time too; the value of compile time is wrong when two checkouts share a target folder.
        let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let package = PathBuf::from(package);
        Self::at(package.parent().unwrap_or(&package))
    }

    /// The checkout in this folder.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The folder of the workspace.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Every file of the project as a path below the root, sorted.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
        while let Some(folder) = folders.pop() {
            let path = self.root.join(&folder);
            for entry in fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))? {
                let entry = entry?;
                let below = folder.join(entry.file_name());
                if !entry.file_type()?.is_dir() {
                    files.push(below);
                } else if FOREIGN_FOLDERS.iter().all(|foreign| entry.file_name() != *foreign) {
                    folders.push(below);
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// A call of cargo in this checkout, with `protoc` at hand. `arguments` are separated by blanks.
    pub(crate) fn cargo(&self, arguments: &str) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(arguments.split_whitespace()).current_dir(&self.root);
        if let Some(protoc) = setup::bundled_protoc() {
            cargo.env("PROTOC", protoc);
        }
        if env::var_os(INCREMENTAL).is_none() && !self.keeps_increments() {
            cargo.env(INCREMENTAL, "0");
        }
        cargo
    }

    /// Whether the next build has something of an earlier one to go on from. What cargo keeps for that makes a first build a
    /// third longer.
    fn keeps_increments(&self) -> bool {
        let kept = fs::read_dir(self.root.join("target/debug/incremental")).into_iter().flatten().flatten();
        // `cargo xtask` itself is built before this is asked.
        kept.map(|kept| kept.file_name()).any(|kept| !kept.to_string_lossy().starts_with("xtask"))
    }
}

/// The command as what another one runs, such as `nice`, in its place and with its variables.
pub(crate) fn wrapped(mut by: Command, command: &Command) -> Command {
    by.arg(command.get_program()).args(command.get_args());
    by.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        by.current_dir(folder);
    }
    by
}

/// Runs a command to its end and shows its output; an error when it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("`{}`: {status}", shown(command));
    }
    Ok(())
}

/// As [`run`], and notes what the test programs in its output say of themselves, also when it fails.
pub(crate) fn run_tests(command: &mut Command, tests: &mut Tests) -> Result<()> {
    read_tests(command, tests, &mut stdout())
}

fn read_tests(command: &mut Command, tests: &mut Tests, shown_on: &mut impl Write) -> Result<()> {
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            shown_on.write_all(&line)?;
            shown_on.write_all(b"\n")?;
            tests.read(&String::from_utf8_lossy(&line));
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}`: {status}", shown(command));
    }
    Ok(())
}

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::TestCounts;

    #[test]
    fn lists_files_but_not_what_is_built() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["a/b/c.rs", "a/target/x", "target/y", ".git/z", ".ci/run", "d"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let files = Project::at(folder.path()).files().unwrap();
        assert_eq!(files, [".ci/run", "a/b/c.rs", "d"].map(PathBuf::from));
    }

    #[test]
    fn first_build_of_a_checkout_keeps_nothing_for_a_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let project = Project::at(folder.path());
        let is_off = || project.cargo("build").get_envs().any(|(name, _)| name == INCREMENTAL);
        for (build, due) in [("xtask-1", true), ("lockkit_core-1", false)] {
            fs::create_dir_all(folder.path().join("target/debug/incremental").join(build)).unwrap();
            assert_eq!(is_off(), due && env::var_os(INCREMENTAL).is_none(), "{build}");
        }
    }

    #[test]
    fn counts_the_tests_of_a_failing_command_too() {
        let (mut tests, mut output) = (Tests::default(), Vec::new());
        let line = "test result: FAILED. 4 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out";
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"echo "$0"; echo other; echo "$0"; exit 3"#, line]);
        let error = read_tests(&mut shell, &mut tests, &mut output).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert_eq!(tests.counts, TestCounts { passed: 8, failed: 2, skipped: 4 });
        assert_eq!(String::from_utf8(output).unwrap(), format!("{line}\nother\n{line}\n"));
    }
}
