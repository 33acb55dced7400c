//! The programs of the workspace that cargo builds for its tests.

use std::{
    io::BufReader,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{project, project::Project};

/// Builds unit and integration tests, examples, and the programs that these start.
const BUILD: &str = "test --workspace --all-features --no-run --message-format json-render-diagnostics";

/// A program that was built.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Package folder and target, such as `lockkit-etcd server`; unit tests have the name of their library or program.
    pub(crate) name: String,
    /// The folder of its package, where cargo runs its tests.
    folder: PathBuf,
    executable: PathBuf,
    is_test: bool,
}

/// Cargo's message about a file that it has built; other messages do not have these fields.
#[derive(Debug, Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all programs, and checks their code with clippy on the way.
pub(crate) fn build(project: &Project) -> Result<Vec<Program>> {
    let mut cargo = project.cargo(BUILD);
    project::compile_with_clippy(&mut cargo);
    let shown = project::shown(&cargo);
    let mut child = cargo.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {shown}"))?;
    let output = BufReader::new(child.stdout.take().context("cargo has no output")?);
    let mut programs = Vec::new();
    for message in serde_json::Deserializer::from_reader(output).into_iter::<serde_json::Value>() {
        programs.extend(Artifact::deserialize(message?).ok().and_then(Program::of));
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{shown}`: {status}");
    }
    Ok(programs)
}

impl Program {
    fn of(artifact: Artifact) -> Option<Self> {
        let folder = artifact.manifest_path.parent()?.to_owned();
        let package = folder.file_name()?.to_string_lossy();
        let name = format!("{package} {}", artifact.target.name);
        Some(Self { name, folder, executable: artifact.executable?, is_test: artifact.profile.test })
    }

    /// Whether it is a test program.
    pub(crate) fn is_test(&self) -> bool {
        self.is_test
    }

    pub(crate) fn executable(&self) -> &Path {
        &self.executable
    }

    /// Returns a command that runs it in the folder and with the variables of `cargo test`.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}
