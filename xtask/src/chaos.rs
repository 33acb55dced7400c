//! `cargo xtask chaos`: random histories on stores started for the occasion.

use anyhow::Result;

use crate::{project, project::Project, setup};

const CHAOS: &str = "run --quiet -p lockkit-chaos --";

/// Passes the options on.
pub(crate) fn run(project: &Project, options: &[String]) -> Result<()> {
    setup::servers()?;
    let folder = project.root().join("target/chaos");
    project::run(project.cargo(CHAOS).arg("--folder").arg(folder).args(options))
}
