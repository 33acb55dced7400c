//! A cluster that loses members.

use std::sync::Arc;

use anyhow::{Context, Result};
use lockkit_conformance::{AnyBackend, ClientLink, Entry};
use lockkit_core::LockName;
use lockkit_testbed::{ClusterStore, Etcd, EtcdCluster, Members};

use crate::{connect, forms::Form, link, server::entries_of};

/// Starts three members.
pub(crate) fn start(form: &'static Form) -> Result<ClusterStore<Etcd, &'static Form>> {
    let cluster = EtcdCluster::start()?;
    // Short enough that a member that does not answer leaves time for another try.
    let url = format!("{}{}", cluster.url(), form.tail("2s"));
    Ok(ClusterStore::new(cluster, url, form))
}

impl Members<Etcd> for &'static Form {
    fn backend(&self, url: &str) -> Result<AnyBackend> {
        connect(url)
    }

    fn link(&self, member: &Etcd) -> Result<Arc<dyn ClientLink>> {
        link::to(&member.endpoint(), "", self)
    }

    fn entries(&self, member: &Etcd, name: &LockName) -> Result<Vec<String>> {
        let keys = member.keys("").context("the keys of the cluster")?;
        Ok(keys.into_iter().filter(|key| self.is_of(name, key)).collect())
    }

    fn contents(&self, member: &Etcd) -> Result<Vec<Entry>> {
        entries_of(member)
    }
}
