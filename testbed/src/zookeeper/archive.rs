//! The classes of a server as the virtual machine needs them in memory: with this archive, a start takes a quarter less
//! computing (JEP 350, dynamic archives of class data sharing).

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use super::{ZooKeeper, ZooKeeperOptions};

/// Returns the archive for this java and these classes; `None` if none can be made.
///
/// It is next to the program that runs. The first program in a folder starts a server to write it.
pub(super) fn path(java: &Path, classpath: &str) -> Option<PathBuf> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path_once = || {
        let path = env::current_exe().ok()?.with_file_name(file_name(java, classpath).ok()?);
        (path.exists() || write(&path).is_ok()).then_some(path)
    };
    PATH.get_or_init(path_once).clone()
}

/// A virtual machine that finds the archive of another version, or of other jars, uses none at all, not even its own:
/// each of them has a file.
fn file_name(java: &Path, classpath: &str) -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    classpath.hash(&mut hasher);
    let java = fs::canonicalize(java)?;
    let jars = classpath.split(':').map(Path::new).filter(|jar| jar.exists());
    for file in jars.chain([&*java]) {
        let metadata = fs::metadata(file)?;
        (file, metadata.len(), metadata.modified()?).hash(&mut hasher);
    }
    Ok(format!("zookeeper-{:016x}.jsa", hasher.finish()))
}

fn write(path: &Path) -> Result<()> {
    let mut file = NamedTempFile::new_in(path.parent().context("a program is in a folder")?)?;
    let mut server = ZooKeeper::without_archive(ZooKeeperOptions::default())?;
    let written = server.folder().join("classes.jsa");
    server.written_archive = Some(written.clone());
    server.restart()?;
    // It does not write when it is killed.
    server.daemon.end_by_itself()?;
    io::copy(&mut fs::File::open(written)?, &mut file)?;
    // Another program may do the same meanwhile: a file of that name is whole.
    file.persist(path)?;
    Ok(())
}
