//! `cargo xtask chaos`: random histories on temporary stores.

use anyhow::Result;

use crate::{project, project::Project, setup};

const CHAOS: &str = "run --quiet -p lockkit-chaos --";

/// Runs `lockkit-chaos` with these options.
pub(crate) fn run(project: &Project, options: &[String]) -> Result<()> {
    setup::install_servers()?;
    let folder = project.root().join("target/chaos");
    project::run(project.cargo(CHAOS).arg("--folder").arg(folder).args(options))
}
