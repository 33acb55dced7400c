//! A cluster that loses members.

use std::sync::Arc;

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, ClientLink, Entry, Store, StoreFault};
use lockkit_core::LockName;
use lockkit_testbed::{Blocking, EtcdCluster};

use crate::{backend, forms::Form, link::ProxyLink, server::entries_of};

/// Three members.
#[derive(Debug)]
pub(crate) struct Cluster {
    cluster: Blocking<State>,
    url: String,
    form: &'static Form,
}

#[derive(Debug)]
struct State {
    cluster: EtcdCluster,
    /// The member that links lead to: the leader at the time of the first link.
    linked: Option<usize>,
}

impl Cluster {
    pub(crate) fn start(form: &'static Form) -> Result<Self> {
        let cluster = EtcdCluster::start()?;
        // Short enough that a member that does not answer leaves time for another try.
        let url = format!("{}{}", cluster.url(), form.tail("2s"));
        Ok(Self { cluster: Blocking::new(State { cluster, linked: None }), url, form })
    }
}

impl State {
    fn linked(&mut self) -> Result<usize> {
        let linked = match self.linked {
            Some(linked) => linked,
            None => self.cluster.leader()?,
        };
        Ok(*self.linked.insert(linked))
    }

    fn lose_leader(&mut self) -> Result<()> {
        let leader = self.cluster.leader()?;
        self.cluster.member_mut(leader).kill()?;
        self.cluster.leader()?;
        self.cluster.member_mut(leader).restart()
    }
}

#[async_trait]
impl Store for Cluster {
    fn backend(&self) -> Result<AnyBackend> {
        Ok(AnyBackend::new(backend(&self.url)?))
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match fault {
            StoreFault::LoseLeader => self.cluster.with(State::lose_leader).await,
            StoreFault::IsolateMember => {
                self.cluster
                    .with(|state| {
                        let linked = state.linked()?;
                        state.cluster.cut(linked)
                    })
                    .await
            }
            StoreFault::RejoinMember => {
                self.cluster
                    .with(|state| {
                        state.cluster.heal();
                        Ok(())
                    })
                    .await
            }
            other => other.unsupported(),
        }
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        let form = self.form;
        let link = self.cluster.with(|state| {
            let linked = state.linked()?;
            ProxyLink::new(&state.cluster.member(linked).endpoint(), "", form)
        });
        Ok(Arc::new(link.await?))
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let (form, name) = (self.form, name.clone());
        self.cluster
            .with(move |state| {
                let leader = state.cluster.leader()?;
                let keys = state.cluster.member(leader).keys("").context("the keys of the cluster")?;
                Ok(keys.into_iter().filter(|key| form.is_of(&name, key)).collect())
            })
            .await
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        self.cluster.with(|state| entries_of(state.cluster.member(state.cluster.leader()?))).await
    }

    async fn requests(&self) -> Result<u64> {
        anyhow::bail!("a cluster does not count requests")
    }
}
