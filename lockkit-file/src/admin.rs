//! What an operator asks of a lock folder: who holds a lock, and which locks are held.
//!
//! A hold cannot be broken: the operating system takes a file lock from no live process. Another file with the same name
//! would be granted while the holder still works, for up to a heartbeat, and the promise that a stale write cannot happen
//! would be gone. The process is on this host, and its end frees the lock at once and safely.

use std::{fs, io, sync::Arc};

use async_trait::async_trait;
use lockkit_core::{
    Error, ErrorKind, LockName, Result,
    backend::{Admin, Contender, Inspection, ListedLock, Page},
};

use crate::{FileBackend, disk::ANSWER_MAX, error::failed, folder::Folder, inspect, keys};

/// Most lock files of which one page finds out whether they are held.
const FILES_PER_PAGE: usize = 4096;

const LIST: &str = "list locks";

#[async_trait]
impl Admin for FileBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let path = self.folder.join(keys::holder_file(name));
        let holder = self.disk.read("inspect", ANSWER_MAX, move || inspect::inspect(&path)).await;
        // Waiters are not visible in the folder.
        Ok(Inspection::new(holder.map_err(|error| error.with_lock(name))?, Vec::new()))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        if after.is_some_and(|after| after.contains('/')) {
            let what = "`after` is not a cursor of this store: pass `Page::next` of the page before";
            return Err(Error::new(ErrorKind::InvalidConfig, LIST).with_message(what));
        }
        let (folder, prefix, after) = (Arc::clone(&self.folder), prefix.to_owned(), after.map(str::to_owned));
        self.disk.read(LIST, ANSWER_MAX, move || list(&folder, &prefix, after.as_deref(), limit.max(1))).await
    }

    async fn break_lock(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        let what = match &holder.metadata {
            Some(metadata) => {
                format!("end process {} on this host, the lock is then free at once", metadata.pid)
            }
            None => {
                let file = self.folder.join(holder.entry.clone());
                format!(
                    "end the process that has locked {file:?} (`fuser` shows it), the lock is then free at once"
                )
            }
        };
        let what = format!("a file lock cannot be taken from a live process; {what}");
        Err(Error::new(ErrorKind::Unsupported, "break").with_lock(name).with_message(what))
    }
}

/// Returns the locks in the order of their files' names. The names come from the lock files, which are created once; a
/// holder file may be replaced while the folder is read, which could then miss it.
fn list(folder: &Folder, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
    let mut stems = match stems(folder) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
        stems => stems.map_err(|cause| failed(LIST, folder.path(), cause))?,
    };
    stems
        .retain(|stem| after.is_none_or(|after| stem.as_str() > after) && keys::may_begin_with(stem, prefix));
    stems.sort_unstable();
    let (mut locks, mut last) = (Vec::new(), None);
    for stem in stems.iter().take(FILES_PER_PAGE) {
        // A file that cannot be opened may be a holder's: an inspection of this lock shows why.
        if !matches!(inspect::locked(LIST, &folder.join(keys::holder_of(stem))), Ok(None)) {
            locks.push(ListedLock::new(keys::name(stem), stem.as_str()));
        }
        last = Some(stem);
        if locks.len() == limit {
            break;
        }
    }
    Ok(Page::new(locks, last.filter(|last| Some(*last) != stems.last()).cloned()))
}

/// Returns the names of all lock files, without their extension.
fn stems(folder: &Folder) -> io::Result<Vec<String>> {
    let mut stems = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        // A lock file's name is ASCII.
        let name = entry?.file_name();
        stems.extend(name.to_str().and_then(keys::stem_of_lock_file).map(str::to_owned));
    }
    Ok(stems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_examines_a_bounded_number_of_files() {
        let path = tempfile::tempdir().unwrap();
        for number in 0..=FILES_PER_PAGE {
            fs::File::create(path.path().join(format!("{number:05}.lock"))).unwrap();
        }
        let folder = Folder::new(path.path());
        let page = list(&folder, "", None, 1).unwrap();
        assert_eq!((page.locks.len(), page.next.as_deref()), (0, Some("04095")));
        let last = list(&folder, "", page.next.as_deref(), 1).unwrap();
        assert_eq!((last.locks.len(), last.next), (0, None));
    }
}
