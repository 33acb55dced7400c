//! A client's way to etcd: a proxy of its own.

use anyhow::Result;
use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, Link, LinkFault};
use lockkit_testbed::Proxy;

use crate::backend;

/// A proxy before one server, or one member.
#[derive(Debug)]
pub(crate) struct ProxyLink {
    proxy: Proxy,
    url: String,
}

impl ProxyLink {
    /// `login` stands before the address, as in a URL.
    pub(crate) fn new(endpoint: &str, login: &str) -> Result<Self> {
        let proxy = Proxy::start_grpc(endpoint)?;
        // Requests that get lost cost little time.
        let url = format!("etcd://{login}{}/?request_timeout=500ms", proxy.endpoint());
        Ok(Self { proxy, url })
    }
}

#[async_trait]
impl Link for ProxyLink {
    fn backend(&self) -> Result<AnyBackend> {
        Ok(AnyBackend::new(backend(&self.url)?))
    }

    async fn inflict(&self, fault: LinkFault) -> Result<()> {
        self.proxy.inflict(fault);
        Ok(())
    }

    async fn heal(&self) -> Result<()> {
        self.proxy.pass();
        Ok(())
    }
}
