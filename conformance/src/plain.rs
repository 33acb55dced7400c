//! A harness without faults, for a first run on a backend of one's own.

use std::{fmt, sync::Arc};

use anyhow::{Result, bail};
use async_trait::async_trait;
use lockkit_core::{
    LockName,
    backend::{Backend, BackendInfo},
};

use crate::{AnyBackend, Fault, Harness, Hook, Link, Rounds, Sharing, Store, Time};

/// A harness of one store that runs already and is reached by an address, also from other processes; it can do the
/// store no harm. `lockkit/examples/custom_backend.rs` uses it.
#[derive(Clone)]
pub struct Plain {
    name: String,
    address: String,
    connect: fn(&str) -> Result<AnyBackend>,
    info: BackendInfo,
    siblings: Vec<String>,
}

impl Plain {
    /// `connect` makes a backend that locks in the store at an address; without I/O, as always.
    ///
    /// # Errors
    ///
    /// When `connect` cannot make one.
    pub fn new(name: &str, address: &str, connect: fn(&str) -> Result<AnyBackend>) -> Result<Self> {
        let info = connect(address)?.info();
        let (name, address) = (name.to_owned(), address.to_owned());
        Ok(Self { name, address, connect, info, siblings: Vec::new() })
    }

    /// Names another backend whose test program runs beside this one, see [`Harness::siblings`].
    #[must_use]
    pub fn beside(mut self, sibling: &str) -> Self {
        self.siblings.push(sibling.to_owned());
        self
    }
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may hold a password.
        f.debug_struct("Plain").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Harness for Plain {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn siblings(&self) -> Vec<String> {
        self.siblings.clone()
    }

    fn info(&self) -> BackendInfo {
        self.info.clone()
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn rounds(&self) -> Rounds {
        Rounds::Few
    }

    fn hooks(&self) -> Vec<Hook> {
        vec![Hook::Processes]
    }

    fn parallel(&self) -> usize {
        16
    }

    fn store(&self, _: Sharing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.clone()))
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        (self.connect)(address)
    }
}

#[async_trait]
impl Store for Plain {
    fn backend(&self) -> Result<AnyBackend> {
        (self.connect)(&self.address)
    }

    fn address(&self) -> Option<String> {
        Some(self.address.clone())
    }

    async fn inflict(&self, fault: Fault) -> Result<()> {
        fault.unsupported()
    }

    async fn link(&self) -> Result<Arc<dyn Link>> {
        bail!("a plain harness has no proxy")
    }

    async fn entries(&self, _: &LockName) -> Result<Vec<String>> {
        bail!("a plain harness does not look into the store")
    }

    async fn requests(&self) -> Result<u64> {
        bail!("a plain harness does not count")
    }
}
