//! `cargo xtask bench`: measures on temporary servers.

use anyhow::Result;

use crate::{project, project::Project, setup};

/// Optimised, as users build lockkit.
const BENCH: &str = "run --quiet --release -p lockkit-bench --";

/// Runs `lockkit-bench` with these options.
pub(crate) fn run(project: &Project, options: &[String]) -> Result<()> {
    setup::install_servers()?;
    let (folder, peers) = (project.root().join("target/bench"), project.root().join("bench/peers"));
    project::run(project.cargo(BENCH).arg("--folder").arg(folder).arg("--peers").arg(peers).args(options))
}
