//! An ensemble whose members lose each other.

use std::sync::Arc;

use anyhow::Result;
use lockkit_conformance::{AnyBackend, ClientLink, Entry};
use lockkit_core::LockName;
use lockkit_testbed::{ClusterStore, Members, Proxy, ZooKeeper, ZooKeeperEnsemble};

use crate::{
    backend,
    store::{LinkThroughProxy, OPTIONS, contents, entries},
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
        Ok(AnyBackend::new(backend(url)?))
    }

    fn link(&self, member: &ZooKeeper) -> Result<Arc<dyn ClientLink>> {
        Ok(Arc::new(LinkThroughProxy(Proxy::start_zookeeper(member.endpoint())?)))
    }

    fn entries(&self, member: &ZooKeeper, name: &LockName) -> Result<Vec<String>> {
        entries(member, name)
    }

    fn contents(&self, member: &ZooKeeper) -> Result<Vec<Entry>> {
        contents(member)
    }
}
