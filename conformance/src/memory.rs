//! The harness of the memory backend: the reference of the suite, on a paused clock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use lockkit_core::{
    LockName,
    backend::{Backend, BackendInfo, Promises},
    memory::MemoryServer,
};

use crate::{
    AnyBackend, ClientLink, Entry, Harness, Hook, LinkFault, Rounds, Sharing, Store, StoreFault, Time,
};

/// The harness of the memory backend. Every case has its own server, since each has its own paused clock.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::exhaustive_structs, reason = "it has no contents")]
pub struct MemoryHarness;

/// The hooks of a [`MemoryStore`].
pub const MEMORY_HOOKS: [Hook; 15] = [
    Hook::Entries,
    Hook::BareNotification,
    Hook::Requests,
    Hook::Lifetimes,
    Hook::Contents,
    Hook::Counts,
    Hook::EndSessionOfHolder,
    Hook::EndSessionOfWaiter,
    Hook::DeleteEntries,
    Hook::Freeze,
    Hook::HoldRequests,
    Hook::SwallowReplies,
    Hook::DropNotifications,
    Hook::DropReplies,
    Hook::Reset,
];

impl Harness for MemoryHarness {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn info(&self) -> BackendInfo {
        MemoryServer::new().backend().info()
    }

    fn promises(&self) -> Promises {
        MemoryServer::new().backend().promises()
    }

    fn time(&self) -> Time {
        Time::Paused
    }

    fn rounds(&self) -> Rounds {
        Rounds::Many
    }

    fn expiry_delay(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn hooks(&self) -> Vec<Hook> {
        MEMORY_HOOKS.to_vec()
    }

    fn parallel(&self) -> usize {
        2
    }

    fn store(&self, _: Sharing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(MemoryStore::new(|server| AnyBackend::new(server.backend()))))
    }

    /// Its list has one entry for all queues.
    fn left_per_lock(&self) -> usize {
        1
    }

    fn connect(&self, _: &str) -> Result<AnyBackend> {
        bail!("a memory server exists in one process only")
    }
}

/// A memory server, and the constructor of its clients.
#[derive(Clone)]
pub struct MemoryStore {
    server: MemoryServer,
    client: Arc<dyn Fn(&MemoryServer) -> AnyBackend + Send + Sync>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("server", &self.server).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// Makes an empty server; `client` makes its clients.
    pub fn new(client: impl Fn(&MemoryServer) -> AnyBackend + Send + Sync + 'static) -> Self {
        Self { server: MemoryServer::new(), client: Arc::new(client) }
    }

    pub(crate) fn server(&self) -> &MemoryServer {
        &self.server
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn backend(&self) -> Result<AnyBackend> {
        Ok((self.client)(&self.server))
    }

    fn address(&self) -> Option<String> {
        None
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match fault {
            StoreFault::EndSessionOfHolder(name) => {
                ensure!(self.server.expire_holder(&name), "no client holds {name:?}");
            }
            StoreFault::EndSessionOfWaiter(name) => {
                ensure!(self.server.expire_waiter(&name), "no client waits for {name:?}");
            }
            StoreFault::DeleteEntries(name) => self.server.delete_entries(&name),
            StoreFault::Freeze => self.server.hold_requests(),
            StoreFault::Thaw => self.server.deliver_requests(),
            other => return other.unsupported(),
        }
        Ok(())
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        Ok(Arc::new(self.clone()))
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let found = self.server.inspect(name);
        Ok(found.holder.into_iter().chain(found.waiters).map(|contender| contender.entry).collect())
    }

    async fn requests(&self) -> Result<u64> {
        Ok(self.server.requests())
    }

    /// On a paused clock a notification takes no time.
    async fn bare_notification(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        let queues = Entry::new("the queues", true);
        Ok(if self.server.is_empty() { Vec::new() } else { vec![queues] })
    }

    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        Ok(BTreeMap::from([("sessions", self.server.sessions() as u64)]))
    }

    async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        Ok(self.server.frees_within(name))
    }
}

/// All clients of a memory server share one connection.
#[async_trait]
impl ClientLink for MemoryStore {
    fn backend(&self) -> Result<AnyBackend> {
        Store::backend(self)
    }

    async fn inflict(&self, fault: LinkFault) -> Result<()> {
        match fault {
            LinkFault::HoldRequests => self.server.hold_requests(),
            LinkFault::SwallowReplies(count) => self.server.lose_replies(count),
            LinkFault::DropNotifications => self.server.drop_notifications(true),
            LinkFault::DropReplies => {
                self.server.lose_replies(usize::MAX);
                self.server.drop_notifications(true);
            }
            // The connection ends after the next request has arrived.
            LinkFault::Reset => self.server.lose_replies(1),
            _ => return fault.unsupported(),
        }
        Ok(())
    }

    async fn heal(&self) -> Result<()> {
        self.server.lose_replies(0);
        self.server.drop_notifications(false);
        self.server.deliver_requests();
        Ok(())
    }
}
