//! `cargo xtask bench`: measures on temporary servers.

use anyhow::Result;

use crate::{project, project::Project, setup};

/// Optimised, as users build lockkit.
const BENCH: &str = "run --quiet --release -p lockkit-bench --";

/// Measures on one store.
pub(crate) fn run(project: &Project, store: &str, options: &[String]) -> Result<()> {
    setup::install_servers()?;
    let folder = project.root().join("target/bench");
    project::run(project.cargo(BENCH).arg(store).args(options).arg("--folder").arg(folder))
}
