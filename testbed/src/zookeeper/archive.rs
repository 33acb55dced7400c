//! The classes of a server as the virtual machine needs them in memory: with this archive, a start takes a quarter less
//! computing (JEP 350, dynamic archives of class data sharing).

use std::{env, fs, path::Path, sync::OnceLock};

use anyhow::{Context, Result};

use super::{ZooKeeper, ZooKeeperOptions};

/// Returns the option of java that uses the archive; `None` if none can be made. A virtual machine of another version
/// ignores it.
///
/// The archive is next to the program that runs. The first one there starts a server that only makes it.
pub(super) fn option() -> Option<String> {
    static OPTION: OnceLock<Option<String>> = OnceLock::new();
    let make_once = || {
        let archive = env::current_exe().ok()?.with_file_name("zookeeper.jsa");
        let exists = archive.exists() || make(&archive).is_ok();
        exists.then(|| format!("-XX:SharedArchiveFile={}", archive.display()))
    };
    OPTION.get_or_init(make_once).clone()
}

fn make(archive: &Path) -> Result<()> {
    let unfinished = archive.with_extension(std::process::id().to_string());
    let option = format!("-XX:ArchiveClassesAtExit={}", unfinished.display());
    let server = ZooKeeper::prepare_with(ZooKeeperOptions::default(), Some(option))?;
    // It does not write when it is killed.
    let mut server = ZooKeeper { daemon: server.daemon.ended_by("TERM"), ..server };
    server.restart()?;
    server.kill()?;
    // Another program may do the same meanwhile: a file of that name is whole.
    fs::rename(&unfinished, archive).context("the virtual machine wrote no archive")
}
