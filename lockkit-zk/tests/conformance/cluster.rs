//! An ensemble whose members lose each other.

use std::sync::Arc;

use anyhow::Result;
use lockkit_conformance::{AnyBackend, ClientLink, Entry};
use lockkit_core::LockName;
use lockkit_testbed::{ClusterStore, Members, ZooKeeper, ZooKeeperEnsemble};

use crate::{
    connect,
    store::{OPTIONS, contents, entries, link_to},
};

/// Starts three members.
pub(crate) fn start() -> Result<ClusterStore<ZooKeeper, Ensemble>> {
    let ensemble = ZooKeeperEnsemble::start()?;
    let url = format!("{}/{OPTIONS}", ensemble.url());
    Ok(ClusterStore::new(ensemble, url, Ensemble))
}

#[derive(Clone, Debug)]
pub(crate) struct Ensemble;

impl Members<ZooKeeper> for Ensemble {
    fn backend(&self, url: &str) -> Result<AnyBackend> {
        connect(url)
    }

    fn link(&self, member: &ZooKeeper) -> Result<Arc<dyn ClientLink>> {
        link_to(member.endpoint())
    }

    fn entries(&self, member: &ZooKeeper, name: &LockName) -> Result<Vec<String>> {
        entries(member, name)
    }

    fn contents(&self, member: &ZooKeeper) -> Result<Vec<Entry>> {
        contents(member)
    }
}
