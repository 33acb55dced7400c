//! The programs of the workspace that cargo builds for its tests.

use std::{
    env,
    io::BufReader,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::{project, project::Project};

/// Builds unit and integration tests, examples, and the programs that these start.
const BUILD: &str = "test --workspace --all-features --no-run --message-format json-render-diagnostics";

/// For the runtime of etcd's servers: on two processors, etcd's tests take a fifth less computing if each server uses one
/// and collects its garbage less often.
const GO_RUNTIME: [(&str, &str); 2] = [("GOMAXPROCS", "1"), ("GOGC", "400")];

/// A program that was built.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Package folder and target, such as `lockkit-etcd server`; unit tests have the name of their library or program.
    pub(crate) name: String,
    /// The name of its package, such as `lockkit-models`.
    pub(crate) package: String,
    pub(crate) target: Target,
    /// The folder of its package, where cargo runs its tests.
    folder: PathBuf,
    executable: PathBuf,
    is_test: bool,
}

/// Cargo's message about a file that it has built; other messages do not have these fields.
#[derive(Debug, Deserialize)]
struct Artifact {
    package_id: String,
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
}

/// What cargo calls a program or a library.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// Such as `test` or `bin`; a library may have several.
    pub(crate) kind: Vec<String>,
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
    for message in serde_json::Deserializer::from_reader(output).into_iter::<Value>() {
        programs.extend(Program::of(&message?));
    }
    let status = child.wait()?;
    ensure!(status.success(), "`{shown}`: {status}");
    Ok(programs)
}

/// Returns the name in `path+file:///folder#name@version`; the id leaves it out if the folder has the same name.
fn package(id: &str) -> &str {
    let (folder, rest) = id.rsplit_once('#').unwrap_or(("", id));
    let in_folder = || folder.rsplit_once('/').map_or(folder, |(_, last)| last);
    rest.split_once('@').map_or_else(in_folder, |(name, _)| name)
}

impl Program {
    /// Returns the program that a message of cargo is about; `None` for any other message.
    pub(crate) fn of(message: &Value) -> Option<Self> {
        let Artifact { package_id, executable, manifest_path, target, profile } =
            Artifact::deserialize(message).ok()?;
        let folder = manifest_path.parent()?.to_owned();
        let name = format!("{} {}", folder.file_name()?.to_string_lossy(), target.name);
        let package = package(&package_id).to_owned();
        Some(Self { name, package, target, folder, executable: executable?, is_test: profile.test })
    }

    /// Whether it is a test program.
    pub(crate) fn is_test(&self) -> bool {
        self.is_test
    }

    pub(crate) fn executable(&self) -> &Path {
        &self.executable
    }

    /// Returns a command that runs it in the folder and with the variables of `cargo test`, and those of servers.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.envs(GO_RUNTIME.into_iter().filter(|(name, _)| env::var_os(name).is_none()));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::package;

    #[test]
    fn packages_are_known_by_their_ids() {
        assert_eq!(package("path+file:///x/models#lockkit-models@0.1.0"), "lockkit-models");
        assert_eq!(package("path+file:///x/lockkit-core#0.1.0"), "lockkit-core");
    }
}
