//! The checkout that the chores work on, and how they call cargo in it.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write, stdout},
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{report::Tests, setup};

/// Folders that do not belong to the project's text, at any depth.
const FOREIGN_FOLDERS: [&str; 2] = [".git", "target"];

/// Cargo's environment variable.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// A checkout of the project.
#[derive(Debug)]
pub(crate) struct Project {
    root: PathBuf,
}

impl Project {
    /// The checkout that this program was called in.
    pub(crate) fn here() -> Self {
        // Cargo sets it at run time too. The compile-time value is wrong if two checkouts share a target folder.
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

    /// Returns every file of the project as a path below the root, sorted.
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

    /// Returns a call of cargo in this checkout, with `protoc` available. `arguments` are separated by blanks.
    pub(crate) fn cargo(&self, arguments: &str) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(arguments.split_whitespace()).current_dir(&self.root);
        if let Some(protoc) = setup::bundled_protoc() {
            cargo.env("PROTOC", protoc);
        }
        if env::var_os(INCREMENTAL).is_none() && !self.has_incremental_data() {
            cargo.env(INCREMENTAL, "0");
        }
        cargo
    }

    /// Returns the packages of the workspace, as `cargo metadata` describes them.
    pub(crate) fn packages<P: DeserializeOwned>(&self) -> Result<Vec<P>> {
        let output = self.cargo("metadata --no-deps --format-version 1").output()?;
        ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        let mut metadata: Value = serde_json::from_slice(&output.stdout)?;
        Ok(serde_json::from_value(metadata["packages"].take())?)
    }

    /// Whether an earlier build has left incremental data. Without any, builds do not write it: that would make the
    /// first build take a third longer.
    fn has_incremental_data(&self) -> bool {
        let entries =
            fs::read_dir(self.root.join("target/debug/incremental")).into_iter().flatten().flatten();
        // `cargo xtask` itself was built just now.
        entries.map(|entry| entry.file_name()).any(|name| !name.to_string_lossy().starts_with("xtask"))
    }
}

/// Removes `.` and `..` from a path.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            other => resolved.push(other),
        }
    }
    resolved
}

/// Makes cargo compile the packages of the workspace with clippy's compiler, and fail on a warning: what is built is
/// checked on the way.
///
/// `cargo clippy` sets the same variables, but it builds nothing that can run: each package would be compiled twice.
///
/// Nobody debugs these builds, and without line tables they take a fifth less. A panic shows its place all the same.
pub(crate) fn compile_with_clippy(cargo: &mut Command) {
    let compiler = Path::new(cargo.get_program()).with_file_name("clippy-driver");
    cargo.env("RUSTC_WORKSPACE_WRAPPER", compiler).env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "false");
}

/// Returns a command that runs another one through a program such as `nice`, in the same folder with the same
/// variables.
pub(crate) fn wrapped(mut by: Command, command: &Command) -> Command {
    by.arg(command.get_program()).args(command.get_args());
    by.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        by.current_dir(folder);
    }
    by
}

/// Runs a command and shows its output. An error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    ensure!(status.success(), "`{}`: {status}", shown(command));
    Ok(())
}

/// As [`run`]. Also collects the counts and failures of test programs from its output, even if it fails.
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
    ensure!(status.success(), "`{}`: {status}", shown(command));
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
    fn files_are_listed_without_build_output() {
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
    fn first_build_writes_no_incremental_data() {
        let folder = tempfile::tempdir().unwrap();
        let project = Project::at(folder.path());
        let is_off = || project.cargo("build").get_envs().any(|(name, _)| name == INCREMENTAL);
        for (build, expected) in [("xtask-1", true), ("lockkit_core-1", false)] {
            fs::create_dir_all(folder.path().join("target/debug/incremental").join(build)).unwrap();
            assert_eq!(is_off(), expected && env::var_os(INCREMENTAL).is_none(), "{build}");
        }
    }

    #[test]
    fn tests_of_a_failing_command_are_counted() {
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
