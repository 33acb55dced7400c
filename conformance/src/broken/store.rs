//! The store of broken backends: a memory server that simulates what it lacks, so that wrong clients can fail: a disk,
//! certificates, logins, a restart.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use lockkit_core::LockName;

use super::{
    Defect,
    wrapper::{BrokenBackend, Shared},
};
use crate::{Access, AnyBackend, ClientLink, Entry, Hook, Store, StoreFault, memory::MemoryStore};

/// The hooks of what it simulates.
pub(super) const SIMULATED_HOOKS: [Hook; 7] =
    [Hook::FullDisk, Hook::Tls, Hook::Secret, Hook::DenyLock, Hook::Restart, Hook::Wipe, Hook::Watched];

#[derive(Debug)]
pub(super) struct BrokenStore {
    inner: MemoryStore,
    defect: Defect,
    shared: Shared,
}

impl BrokenStore {
    pub(super) fn new(defect: Defect) -> Self {
        let shared = Shared::default();
        let of_client = shared.clone();
        let inner = MemoryStore::new(move |server| {
            AnyBackend::new(BrokenBackend::new(server, defect, of_client.clone(), None))
        });
        Self { inner, defect, shared }
    }
}

#[async_trait]
impl Store for BrokenStore {
    fn backend(&self) -> Result<AnyBackend> {
        Store::backend(&self.inner)
    }

    fn address(&self) -> Option<String> {
        self.inner.address()
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match fault {
            StoreFault::FillDisk => self.shared.state().is_full = true,
            StoreFault::EmptyDisk => self.shared.state().is_full = false,
            // The data stays; requests that are in progress are repeated.
            StoreFault::Restart => {
                self.shared.state().last_token = 0;
                self.shared.state().restarts += 1;
                if self.defect == Defect::ForgetfulRestart {
                    self.inner.server().expire_all();
                }
            }
            StoreFault::Wipe => self.inner.server().expire_all(),
            other => return Store::inflict(&self.inner, other).await,
        }
        Ok(())
    }

    async fn backend_for(&self, access: Access) -> Result<AnyBackend> {
        let (server, shared) = (self.inner.server(), self.shared.clone());
        Ok(AnyBackend::new(BrokenBackend::new(server, self.defect, shared, Some(access))))
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        self.inner.link().await
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        self.inner.entries(name).await
    }

    async fn requests(&self) -> Result<u64> {
        self.inner.requests().await
    }

    async fn bare_notification(&self) -> Result<Duration> {
        self.inner.bare_notification().await
    }

    async fn reports_at_once(&self) -> Result<bool> {
        self.inner.reports_at_once().await
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        let mut entries = self.inner.contents().await?;
        let left = self.shared.state().left_entries.clone();
        let (what, is_bounded) = match self.defect {
            Defect::EntryPerRelease => ("counter", true),
            Defect::CounterWithoutTtl => ("counter", false),
            _ => ("entry", false),
        };
        entries.extend(left.iter().map(|name| Entry::new(format!("{what} of {name}"), is_bounded)));
        Ok(entries)
    }

    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        let mut counts = self.inner.counts().await?;
        counts.insert("watches", self.shared.state().left_watches.len() as u64);
        Ok(counts)
    }

    async fn watched(&self) -> Result<Vec<String>> {
        Ok(self.shared.state().left_watches.iter().map(ToString::to_string).collect())
    }

    async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        self.inner.frees_within(name).await
    }
}
