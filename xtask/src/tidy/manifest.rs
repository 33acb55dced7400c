//! What the `Cargo.toml` files state about the packages.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{Finding, Rule, source};
use crate::project::Project;

/// Every package: its folder, and whether others can depend on its library.
#[derive(Debug)]
pub(super) struct Manifests {
    published_library: BTreeMap<PathBuf, bool>,
}

impl Manifests {
    pub(super) fn read(project: &Project, files: &[PathBuf]) -> Result<Self> {
        let mut published_library = BTreeMap::new();
        for folder in
            files.iter().filter(|file| file.ends_with("Cargo.toml")).filter_map(|file| file.parent())
        {
            let text = fs::read_to_string(project.root().join(folder).join("Cargo.toml"))?;
            let published = !has_line(&text, "[package]", "publish=false");
            let library = project.root().join(folder).join("src/lib.rs").is_file();
            published_library.insert(folder.to_owned(), published && library);
        }
        Ok(Self { published_library })
    }

    /// Returns the kind of a source file, by its path in its package.
    pub(super) fn kind_of(&self, file: &Path) -> source::Kind {
        let package =
            file.ancestors().skip(1).find_map(|folder| self.published_library.get_key_value(folder));
        let Some((folder, published_library)) = package else { return source::Kind::Other };
        let below = file.strip_prefix(folder).unwrap_or(file);
        match below.components().next().and_then(|first| first.as_os_str().to_str()) {
            Some("tests") => source::Kind::Test,
            Some("src") if *published_library => source::Kind::PublishedLibrary,
            _ => source::Kind::Other,
        }
    }
}

/// A finding for a package (not a virtual workspace) that does not use the workspace's lints.
pub(super) fn lints(manifest: &str) -> Option<Finding> {
    let is_package = manifest.lines().any(|line| line.trim() == "[package]");
    let missing = is_package && !has_line(manifest, "[lints]", "workspace=true");
    missing.then(|| Finding::new(Rule::Lints, 1, "no `[lints]` with `workspace = true`"))
}

/// Whether a table has this line, ignoring white space. This parses only the form of TOML that the project uses.
fn has_line(manifest: &str, table: &str, line: &str) -> bool {
    let squeezed =
        |line: &str| line.split('#').next().unwrap_or_default().split_whitespace().collect::<String>();
    manifest
        .lines()
        .map(squeezed)
        .skip_while(|line| line != table)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|found| found == line)
}
