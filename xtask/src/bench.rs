//! `cargo xtask bench`: figures, on servers started for the occasion.

use anyhow::Result;

use crate::{project, project::Project, setup};

/// Optimised, as users build it.
const BENCH: &str = "run --quiet --release -p lockkit-bench --";

/// Measures on one store.
pub(crate) fn run(project: &Project, store: &str, options: &[String]) -> Result<()> {
    setup::servers()?;
    let folder = project.root().join("target/bench");
    project::run(project.cargo(BENCH).arg(store).args(options).arg("--folder").arg(folder))
}
