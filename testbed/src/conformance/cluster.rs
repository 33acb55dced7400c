//! A cluster as a store of the suite: it loses members.

use std::{fmt::Debug, sync::Arc};

use anyhow::{Result, bail};
use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, ClientLink, Entry, Store, StoreFault};
use lockkit_core::LockName;

use crate::{Blocking, Cluster, Member};

/// What a backend's test program knows of the members of a cluster.
pub trait Members<M>: Clone + Debug + Send + Sync + 'static {
    /// Returns a backend at this URL.
    ///
    /// # Errors
    ///
    /// When the URL is wrong.
    fn backend(&self, url: &str) -> Result<AnyBackend>;

    /// Returns a new link of a client to a member.
    ///
    /// # Errors
    ///
    /// When its proxy does not start.
    fn link(&self, member: &M) -> Result<Arc<dyn ClientLink>>;

    /// Returns the entries of a lock. See [`Store::entries`].
    ///
    /// # Errors
    ///
    /// When the member does not answer.
    fn entries(&self, member: &M, name: &LockName) -> Result<Vec<String>>;

    /// Returns all entries. See [`Store::contents`].
    ///
    /// # Errors
    ///
    /// When the member does not answer.
    fn contents(&self, member: &M) -> Result<Vec<Entry>>;
}

/// A cluster as a store of the suite.
#[derive(Debug)]
pub struct ClusterStore<S: Member, M> {
    cluster: Blocking<State<S>>,
    url: String,
    members: M,
}

#[derive(Debug)]
struct State<S: Member> {
    cluster: Cluster<S>,
    /// The member that links lead to: the leader at the time of the first link, whose isolation has the most effect.
    linked: Option<usize>,
}

impl<S: Member, M: Members<S>> ClusterStore<S, M> {
    /// Returns this cluster as a store, whose clients use `url`.
    pub fn new(cluster: Cluster<S>, url: String, members: M) -> Self {
        Self { cluster: Blocking::new(State { cluster, linked: None }), url, members }
    }

    /// Looks into the store at its leader.
    async fn at_leader<T: Send + 'static>(
        &self,
        look: impl FnOnce(&M, &S) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let members = self.members.clone();
        self.cluster.with(move |state| look(&members, state.cluster.member(state.cluster.leader()?))).await
    }
}

impl<S: Member> State<S> {
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

    fn isolate_member(&mut self) -> Result<()> {
        let linked = self.linked()?;
        self.cluster.cut(linked)
    }
}

#[async_trait]
impl<S: Member, M: Members<S>> Store for ClusterStore<S, M> {
    fn backend(&self) -> Result<AnyBackend> {
        self.members.backend(&self.url)
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match fault {
            StoreFault::LoseLeader => self.cluster.with(State::lose_leader).await,
            StoreFault::IsolateMember => self.cluster.with(State::isolate_member).await,
            StoreFault::RejoinMember => {
                let heal = |state: &mut State<S>| {
                    state.cluster.heal();
                    Ok(())
                };
                self.cluster.with(heal).await
            }
            other => other.unsupported(),
        }
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        let members = self.members.clone();
        self.cluster
            .with(move |state| {
                let linked = state.linked()?;
                members.link(state.cluster.member(linked))
            })
            .await
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let name = name.clone();
        self.at_leader(move |members, leader| members.entries(leader, &name)).await
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        self.at_leader(|members, leader| members.contents(leader)).await
    }

    async fn requests(&self) -> Result<u64> {
        bail!("a cluster does not count requests")
    }
}
