//! A harness without faults, for the first run on a new backend.

use std::{fmt, sync::Arc};

use anyhow::{Result, bail};
use async_trait::async_trait;
use lockkit_core::{
    LockName,
    backend::{Backend, BackendInfo, Promises},
};

use crate::{AnyBackend, ClientLink, Harness, Hook, Sharing, Store, StoreFault};

/// A harness of one running store with an address that other processes can use too. It injects no faults.
///
/// `examples/custom_backend.rs` uses it.
#[derive(Clone)]
pub struct Plain {
    name: String,
    address: String,
    connect: fn(&str) -> Result<AnyBackend>,
    info: BackendInfo,
    promises: Promises,
    siblings: Vec<String>,
}

impl Plain {
    /// Makes a harness for the store at `address`; `connect` makes a backend for an address, without I/O.
    ///
    /// # Errors
    ///
    /// When `connect` cannot make one.
    pub fn new(name: &str, address: &str, connect: fn(&str) -> Result<AnyBackend>) -> Result<Self> {
        let backend = connect(address)?;
        let (info, promises) = (backend.info(), backend.promises());
        let (name, address) = (name.to_owned(), address.to_owned());
        Ok(Self { name, address, connect, info, promises, siblings: Vec::new() })
    }

    /// Adds another backend whose test program belongs to the same project, see [`Harness::siblings`].
    #[must_use]
    pub fn sibling(mut self, sibling: &str) -> Self {
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

    fn promises(&self) -> Promises {
        self.promises.clone()
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

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        fault.unsupported()
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        bail!("a plain harness has no proxy")
    }

    async fn entries(&self, _: &LockName) -> Result<Vec<String>> {
        bail!("a plain harness cannot read the store")
    }

    async fn requests(&self) -> Result<u64> {
        bail!("a plain harness does not count requests")
    }
}
