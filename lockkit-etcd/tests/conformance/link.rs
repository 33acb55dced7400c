//! The link of one client to etcd: a proxy.

use anyhow::Result;
use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, ClientLink, LinkFault};
use lockkit_testbed::Proxy;

use crate::{backend, forms::Form};

/// A proxy in front of one server or member.
#[derive(Debug)]
pub(crate) struct ProxyLink {
    proxy: Proxy,
    url: String,
}

impl ProxyLink {
    /// Starts a proxy. `login` is `USER:PASSWORD@` or empty.
    pub(crate) fn new(endpoint: &str, login: &str, form: &Form) -> Result<Self> {
        let proxy = Proxy::start_grpc(endpoint)?;
        // Short, so that lost requests cost little time.
        let url = format!("etcd://{login}{}{}", proxy.endpoint(), form.tail("500ms"));
        Ok(Self { proxy, url })
    }
}

#[async_trait]
impl ClientLink for ProxyLink {
    fn backend(&self) -> Result<AnyBackend> {
        Ok(AnyBackend::new(backend(&self.url)?))
    }

    async fn inflict(&self, fault: LinkFault) -> Result<()> {
        self.proxy.inflict(fault)
    }

    async fn heal(&self) -> Result<()> {
        self.proxy.pass();
        Ok(())
    }
}
