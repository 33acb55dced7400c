//! `cargo xtask package`: packages each crate that is published, and builds a new project from the packages alone.
//!
//! What a package lacks shows nowhere else: in the workspace each crate finds the files and features of the others. The
//! new project is outside of the workspace, has the dependencies of the lock file, and no `protoc` on its PATH. Nothing
//! is uploaded.

mod new_project;

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::project::{self, Project};

/// What each package contains besides its sources.
const FILES: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// The top-level domain that is reserved for addresses that reach nothing (RFC 2606).
const RESERVED_DOMAIN: &str = ".invalid";

/// A crate that is published, as `cargo metadata` describes it.
#[derive(Clone, Debug, Deserialize)]
struct Crate {
    name: String,
    version: String,
    /// The registries that it may be published to; `None`: to any.
    publish: Option<Vec<String>>,
    description: Option<String>,
    license: Option<String>,
    repository: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
}

/// Packages all crates, checks what is in the packages, and builds the new project.
pub(crate) fn run(project: &Project) -> Result<()> {
    let crates = published(project)?;
    let incomplete: Vec<String> = crates.iter().filter_map(Crate::lacks).collect();
    ensure!(incomplete.is_empty(), "{}", incomplete.join("; "));
    let mut cargo = project.cargo("package --no-verify --locked --allow-dirty");
    cargo.args(crates.iter().flat_map(|package| ["--package", &package.name]));
    quietly(&mut cargo)?;
    let folder = tempfile::tempdir()?;
    println!("{:30} {:>6} {:>10} {:>11}", "package", "files", "KiB", "compressed");
    for package in &crates {
        let archive = project.root().join("target/package").join(format!("{}.crate", package.folder()));
        println!("{}", unpack(package, &archive, folder.path())?);
    }
    new_project::build(project, &crates, folder.path())?;
    println!("\nThe new project builds from the packages, and runs.");
    if crates.iter().any(Crate::has_reserved_repository) {
        println!(
            "Not ready to be published: the repository in Cargo.toml reaches nothing (docs/releasing.md)."
        );
    }
    Ok(())
}

/// Returns the crates that are published.
fn published(project: &Project) -> Result<Vec<Crate>> {
    let mut crates: Vec<Crate> = project.packages()?;
    crates.retain(|package| package.publish.is_none());
    Ok(crates)
}

impl Crate {
    /// The folder in its package.
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Says what its manifest does not state.
    fn lacks(&self) -> Option<String> {
        let stated = [
            ("a description", self.description.is_some()),
            ("a license", self.license.is_some()),
            ("a repository", self.repository.is_some()),
            ("keywords", !self.keywords.is_empty()),
            ("categories", !self.categories.is_empty()),
        ];
        let missing: Vec<_> =
            stated.iter().filter(|(_, is_stated)| !is_stated).map(|(what, _)| *what).collect();
        (!missing.is_empty()).then(|| format!("{} lacks {}", self.name, missing.join(", ")))
    }

    fn has_reserved_repository(&self) -> bool {
        self.repository.as_ref().is_some_and(|address| address.contains(RESERVED_DOMAIN))
    }
}

/// Unpacks a package, and describes it in one line. An error if a file is missing that each package has.
fn unpack(package: &Crate, archive: &Path, into: &Path) -> Result<String> {
    quietly(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into))?;
    let root = into.join(package.folder());
    if let Some(missing) = FILES.iter().find(|file| !root.join(file).is_file()) {
        bail!("the package of {} has no {missing}", package.name);
    }
    let files = Project::at(&root).files()?;
    let sizes = files.iter().map(|file| Ok(root.join(file).metadata()?.len())).sum::<Result<u64>>();
    let [total, compressed] = [sizes?, archive.metadata()?.len()].map(|bytes| bytes.div_ceil(1024));
    Ok(format!("{:30} {:6} {total:10} {compressed:11}", package.folder(), files.len()))
}

/// Runs a command whose output matters only if it fails.
fn quietly(command: &mut Command) -> Result<()> {
    let shown = project::shown(command);
    let output = command.output().with_context(|| format!("cannot start {shown}"))?;
    ensure!(output.status.success(), "`{shown}`: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn example() -> Crate {
        Crate {
            name: "a".to_owned(),
            version: "1.2.3".to_owned(),
            publish: None,
            description: Some(String::new()),
            license: Some(String::new()),
            repository: Some("https://example.org/a".to_owned()),
            keywords: vec![String::new()],
            categories: vec![String::new()],
        }
    }

    #[test]
    fn manifest_that_lacks_something_is_named() {
        assert_eq!(example().lacks(), None);
        let incomplete = Crate { license: None, keywords: vec![], ..example() };
        assert_eq!(incomplete.lacks().unwrap(), "a lacks a license, keywords");
    }

    #[test]
    fn reserved_address_is_no_repository() {
        assert!(!example().has_reserved_repository());
        let reserved = Crate { repository: Some("https://lockkit.invalid".to_owned()), ..example() };
        assert!(reserved.has_reserved_repository());
    }

    #[test]
    fn package_without_a_licence_is_an_error() {
        let [source, target] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let archive = source.path().join("a.crate");
        let pack = |files: &[&str]| {
            let root = source.path().join("a-1.2.3");
            fs::create_dir_all(&root).unwrap();
            files.iter().for_each(|file| fs::write(root.join(file), "12345").unwrap());
            quietly(
                Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(source.path()).arg("a-1.2.3"),
            )
            .unwrap();
            unpack(&example(), &archive, target.path())
        };
        let error = pack(&FILES[..2]).unwrap_err().to_string();
        assert!(error.contains("the package of a has no LICENSE-MIT"), "{error}");
        let line = pack(&FILES).unwrap();
        assert_eq!(line.split_whitespace().take(3).collect::<Vec<_>>(), ["a-1.2.3", "3", "1"]);
    }

    #[test]
    fn what_only_the_workspace_uses_is_not_published() {
        let names: Vec<_> =
            published(&Project::here()).unwrap().into_iter().map(|package| package.name).collect();
        assert!(names.contains(&"lockkit".to_owned()) && names.contains(&"lockkit-conformance".to_owned()));
        assert!(!names.iter().any(|name| name == "xtask" || name == "lockkit-testbed"), "{names:?}");
    }
}
