//! An ensemble whose members lose each other.

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, ClientLink, Entry, Store, StoreFault};
use lockkit_core::LockName;
use lockkit_testbed::{Blocking, Proxy, ZooKeeperEnsemble};

use crate::{
    backend,
    store::{LinkThroughProxy, OPTIONS, contents, entries},
};

/// Three members.
#[derive(Debug)]
pub(crate) struct Cluster {
    cluster: Blocking<State>,
    url: String,
}

#[derive(Debug)]
struct State {
    ensemble: ZooKeeperEnsemble,
    /// The member that links lead to, once there is a link: the leader of that moment, whose isolation has the most
    /// effect.
    linked: Option<usize>,
}

impl Cluster {
    pub(crate) fn start() -> Result<Self> {
        let ensemble = ZooKeeperEnsemble::start()?;
        let url = format!("{}/{OPTIONS}", ensemble.url());
        Ok(Self { cluster: Blocking::new(State { ensemble, linked: None }), url })
    }
}

impl State {
    fn linked(&mut self) -> Result<usize> {
        let linked = match self.linked {
            Some(linked) => linked,
            None => self.ensemble.leader()?,
        };
        Ok(*self.linked.insert(linked))
    }

    fn lose_leader(&mut self) -> Result<()> {
        let leader = self.ensemble.leader()?;
        self.ensemble.member_mut(leader).kill()?;
        self.ensemble.leader()?;
        self.ensemble.member_mut(leader).restart()
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
                        state.ensemble.cut(linked);
                        Ok(())
                    })
                    .await
            }
            StoreFault::RejoinMember => {
                self.cluster
                    .with(|state| {
                        state.ensemble.heal();
                        Ok(())
                    })
                    .await
            }
            other => other.unsupported(),
        }
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        let proxy = self.cluster.with(|state| {
            let linked = state.linked()?;
            Proxy::start_zookeeper(state.ensemble.member(linked).endpoint())
        });
        Ok(Arc::new(LinkThroughProxy(proxy.await?)))
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let name = name.clone();
        self.cluster
            .with(move |state| {
                let leader = state.ensemble.leader()?;
                entries(state.ensemble.member(leader), &name)
            })
            .await
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        self.cluster.with(|state| contents(state.ensemble.member(state.ensemble.leader()?))).await
    }

    async fn requests(&self) -> Result<u64> {
        anyhow::bail!("an ensemble does not count requests")
    }
}
