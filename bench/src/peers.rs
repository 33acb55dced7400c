//! The locks of others: programs in `bench/peers`, which `peers.json` there lists. Each does what [`crate::job`] says.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{backend::Backend, workload::Workload};

/// The list of the programs, in their folder.
const MANIFEST: &str = "peers.json";

/// The program that installs them, in their folder.
const INSTALL: &str = "install";

/// A lock of somebody else.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Peer {
    /// Its name in jobs and in reports.
    pub(crate) row: String,
    /// The names of the backends that it works on.
    stores: Vec<String>,
    /// The names of the workloads that it can run; all without a list.
    workloads: Option<Vec<String>>,
    /// The program and its arguments before the job. A path is relative to the folder.
    command: Vec<String>,
}

/// Installs the peers. What cannot be installed is named, and is missing in the report.
///
/// # Errors
///
/// When the installer in `folder` cannot be started.
pub fn install(folder: &Path) -> Result<()> {
    let program = folder.join(INSTALL);
    let status = Command::new(&program).status().with_context(|| program.display().to_string())?;
    if !status.success() {
        eprintln!("not all peers are installed: {status}");
    }
    Ok(())
}

/// Reads the list. Without one there are no peers.
pub(crate) fn load(folder: &Path) -> Result<Vec<Peer>> {
    let path = folder.join(MANIFEST);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path)?;
    let mut peers: Vec<Peer> = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    for peer in &mut peers {
        peer.command = peer.command.iter().map(|word| in_folder(folder, word)).collect();
    }
    Ok(peers)
}

/// Makes a path within the folder absolute; other words stay.
fn in_folder(folder: &Path, word: &str) -> String {
    let is_path = word.contains('/') && !word.starts_with('-') && Path::new(word).is_relative();
    let path: PathBuf = if is_path { folder.join(word) } else { word.into() };
    path.display().to_string()
}

impl Peer {
    pub(crate) fn runs(&self, backend: Backend, workload: Workload) -> bool {
        let workload = workload.to_string();
        self.stores.iter().any(|store| store == backend.name())
            && self.workloads.as_ref().is_none_or(|workloads| workloads.contains(&workload))
    }

    /// Returns the command, or why there is none.
    pub(crate) fn command(&self) -> Result<Vec<OsString>, String> {
        match self.command.first() {
            Some(program) if program.contains('/') && !Path::new(program).exists() => {
                Err("not installed; --install-peers does that".to_owned())
            }
            Some(_) => Ok(self.command.iter().map(OsString::from).collect()),
            None => Err(format!("{MANIFEST} has no command for {}", self.row)),
        }
    }
}
