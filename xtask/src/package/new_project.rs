//! A project of somebody who uses lockkit, made of the packages.

use std::{
    env,
    ffi::OsString,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::Crate;
use crate::project::{self, Project};

/// Its features of `lockkit`.
const FEATURES: &str = r#"["etcd", "file", "metrics", "redis", "tls", "zk", "zk-sasl"]"#;

/// What the program of the project must print: it has locked in memory and in a file, and knows the other stores.
const PRINTED: [&str; 3] = ["locked in memory:", "locked in file://", " etcds "];

/// Builds the project in the folder that contains the unpacked packages, and runs its programs.
pub(super) fn build(project: &Project, crates: &[Crate], folder: &Path) -> Result<()> {
    fs::write(folder.join("Cargo.toml"), workspace(crates))?;
    fs::copy(project.root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    fs::create_dir_all(folder.join("app/src"))?;
    let tokio = r#"tokio = { version = "1", features = ["macros", "rt"] }"#;
    let version = crates.first().map(|package| package.version.as_str()).context("no crate is published")?;
    let lockkit = format!("lockkit = {{ version = \"={version}\", features = {FEATURES} }}");
    let package = "[package]\nname = \"app\"\nversion = \"1.0.0\"\nedition = \"2024\"";
    fs::write(folder.join("app/Cargo.toml"), format!("{package}\n\n[dependencies]\n{lockkit}\n{tokio}\n"))?;
    fs::write(folder.join("app/src/main.rs"), include_str!("app.rs"))?;
    let path = path_without_protoc(&folder.join("bin"))?;
    let cargo = |arguments: &str| {
        let mut cargo = project.cargo(arguments);
        cargo.current_dir(folder).env("PATH", &path).env_remove("PROTOC");
        // Outside of the folder, so that the dependencies need not be compiled again the next time.
        cargo.env("CARGO_TARGET_DIR", project.root().join("target/new-project"));
        cargo
    };
    let locks = folder.join("locks");
    let mut program = cargo("run --package app --");
    let printed = output(program.arg(&locks))?;
    print!("\n{printed}");
    let missing = PRINTED.iter().find(|expected| !printed.contains(*expected));
    ensure!(missing.is_none(), "the program did not print {missing:?}");
    let mut program = cargo("run --package lockkit-cli --features etcd,redis,tls,zk -- run --backend");
    program.arg(format!("file://{}", locks.display())).args([
        "name",
        "--",
        "sh",
        "-c",
        "echo token $LOCKKIT_TOKEN",
    ]);
    let printed = output(&mut program)?;
    ensure!(printed.starts_with("token "), "the job of `lockkit run` did not run: {printed}");
    println!("lockkit run: {}", printed.trim());
    project::run(&mut cargo("check --package lockkit-conformance --all-features"))
}

/// Returns a PATH on which the first `protoc`, in this folder, is one that fails.
fn path_without_protoc(folder: &Path) -> Result<OsString> {
    let program = folder.join("protoc");
    fs::create_dir_all(folder)?;
    fs::write(&program, "#!/bin/sh\nexit 1\n")?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    let path = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths([folder.to_owned()].into_iter().chain(env::split_paths(&path)))?)
}

/// The manifest of a workspace in which each crate is its package.
fn workspace(crates: &[Crate]) -> String {
    let members: String = crates.iter().map(|package| format!("\"{}\", ", package.folder())).collect();
    let patches: String = crates
        .iter()
        .map(|package| format!("{} = {{ path = \"{}\" }}\n", package.name, package.folder()))
        .collect();
    format!("[workspace]\nresolver = \"3\"\nmembers = [{members}\"app\"]\n\n[patch.crates-io]\n{patches}")
}

/// Runs a command, and returns what it prints on its standard output. Its other output is shown.
fn output(command: &mut Command) -> Result<String> {
    let shown = project::shown(command);
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start {shown}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "`{shown}`: {}\n{printed}", output.status);
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_protoc_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_without_protoc(folder.path()).unwrap();
        let succeeds = |program: &str| {
            Command::new("sh").args(["-c", program]).env("PATH", &path).status().unwrap().success()
        };
        assert_eq!([succeeds("protoc --version"), succeeds("cat /dev/null")], [false, true]);
    }
}
