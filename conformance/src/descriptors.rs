//! The file descriptors that a case leaves open: connections that its clients did not close.
//!
//! Cases run in parallel, so those of the process say nothing about one case. But each case has a runtime of its own,
//! and Linux lists what the epoll of a runtime watches: every connection that was made on it, also one that nobody can
//! reach any more. Clients with a runtime of their own close their connections with it.

use std::{fs, os::fd::AsRawFd, path::PathBuf};

use anyhow::Result;
use tokio::net::UnixStream;

/// A file for each descriptor of this process; for an epoll it lists what that one watches.
const DESCRIPTORS: &str = "/proc/self/fdinfo";

/// The descriptors that the runtime of a case watches.
#[derive(Debug)]
pub(crate) struct Descriptors {
    /// Of the epoll; `None` where the system has no such list.
    list: Option<PathBuf>,
    /// What there was at the start: signals, for example.
    before: Vec<String>,
}

impl Descriptors {
    /// Finds the epoll of the current runtime by a connection that it watches.
    pub(crate) fn of_this_runtime() -> Result<Self> {
        let (probe, peer) = UnixStream::pair()?;
        let watched = probe.as_raw_fd().to_string();
        let files = fs::read_dir(DESCRIPTORS).into_iter().flatten().flatten().map(|file| file.path());
        let list = files.into_iter().find(|file| read(file).contains(&watched));
        drop((probe, peer));
        let before = list.as_ref().map(read).unwrap_or_default();
        Ok(Self { list, before })
    }

    /// Returns those that were not there at the start.
    pub(crate) fn left_open(&self) -> Vec<String> {
        let mut now = self.list.as_ref().map(read).unwrap_or_default();
        now.retain(|descriptor| !self.before.contains(descriptor));
        now
    }
}

/// Reads lines such as `tfd:  5 events: 19 data: 0`. A descriptor that another case has closed watches nothing.
fn read(file: &PathBuf) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let numbers = text.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next());
    numbers.map(str::to_owned).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connection_that_nobody_can_reach_is_counted() {
        let descriptors = Descriptors::of_this_runtime().unwrap();
        assert!(descriptors.list.is_some());
        let pair = UnixStream::pair().unwrap();
        assert_eq!(descriptors.left_open().len(), 2);
        drop(pair.0);
        std::mem::forget(pair.1);
        assert_eq!(descriptors.left_open().len(), 1);
    }
}
