//! What tests of waiters and their watches start with.

use std::sync::Arc;

use lockkit_core::backend::{Grant, Session};
use lockkit_testbed::Proxy;

use crate::common::{
    LONG, OwnServer, PendingClaim, acquire, earliest_recheck, enqueued, fresh_name, plain, queue, release,
    session, sooner_than, start_with_proxy, until,
};

/// A server with two clients; the other one is connected through a proxy.
pub(crate) struct Setting {
    pub(crate) etcd: OwnServer,
    pub(crate) proxy: Proxy,
    pub(crate) one: Arc<dyn Session>,
    pub(crate) other: Arc<dyn Session>,
}

impl Setting {
    pub(crate) async fn start() -> Self {
        let (etcd, proxy, other) = start_with_proxy().await;
        let one = session(&etcd, LONG).await;
        Self { etcd, proxy, one, other }
    }

    /// Checks that a round at a server of its own ends before a waiter re-checks by itself.
    pub(crate) async fn before_a_recheck(round: impl AsyncFn(&Self)) {
        let setting = Self::start().await;
        sooner_than(earliest_recheck(LONG), async || round(&setting).await).await;
    }

    /// Takes a lock with the first client, and waits for it with the other one.
    pub(crate) async fn held_and_waited_for(&self) -> (Grant, PendingClaim) {
        self.watches(0).await;
        let name = fresh_name();
        (acquire(&self.one, &name).await, enqueued(&self.other, &name).await)
    }

    /// Waits with the other client for a lock that another program holds under the returned key. That program sends no
    /// handoff.
    pub(crate) async fn behind_a_foreign_key(&self) -> (String, PendingClaim) {
        // None of an earlier round.
        self.watches(0).await;
        let name = fresh_name();
        let foreign = format!("{}foreign", queue(&name));
        self.etcd.put(&foreign, "").unwrap();
        (foreign, enqueued(&self.other, &name).await)
    }

    /// Waits until this many predecessors are watched, in addition to the two clients' own keys.
    pub(crate) async fn watches(&self, predecessors: u64) {
        let watchers = || self.etcd.metrics().unwrap().watchers();
        until("the predecessors are watched", async || watchers() == 2 + predecessors).await;
    }

    pub(crate) async fn ends_with_a_grant(&self, waiting: PendingClaim) {
        release(&self.other, &waiting.granted().await).await;
    }

    /// Compacts the history up to now, so that watches of it are cancelled.
    pub(crate) async fn compact(&self) {
        let mut plain = plain(&self.etcd).await;
        let revision = plain.put("x", "", None).await.unwrap().header().unwrap().revision();
        plain.compact(revision, None).await.unwrap();
    }
}
