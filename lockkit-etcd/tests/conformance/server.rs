//! One server.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use async_trait::async_trait;
use etcd_client::{Client, PutOptions};
use lockkit_conformance::{Access, AnyBackend, Fault, Link, Store};
use lockkit_core::{
    LockName,
    backend::{Admin, Contender},
};
use lockkit_etcd::EtcdBackend;
use lockkit_testbed::Etcd;

use crate::{access::Beside, backend, link::ProxyLink};

/// Who logs in where that is asked for.
const USER: &str = "app";
pub(crate) const PASSWORD: &str = "secret";
const LOGIN: &str = "app:secret@";

/// A server. Its methods block, so they run beside the executor.
#[derive(Debug)]
pub(crate) struct Server {
    etcd: Arc<Mutex<Etcd>>,
    endpoint: String,
    /// `USER:PASSWORD@`, or nothing.
    login: &'static str,
    beside: Beside,
}

impl Server {
    pub(crate) fn start() -> Result<Self> {
        Ok(Self::of(Etcd::start()?, ""))
    }

    pub(crate) fn start_with_login() -> Result<Self> {
        let mut etcd = Etcd::start()?;
        etcd.enable_auth(USER, PASSWORD)?;
        Ok(Self::of(etcd, LOGIN))
    }

    fn of(etcd: Etcd, login: &'static str) -> Self {
        let endpoint = etcd.endpoint();
        Self { etcd: Arc::new(Mutex::new(etcd)), endpoint, login, beside: Beside::default() }
    }

    fn url(&self) -> String {
        format!("etcd://{}{}", self.login, self.endpoint)
    }

    fn etcd_backend(&self) -> Result<EtcdBackend> {
        backend(&self.url())
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Etcd) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let etcd = Arc::clone(&self.etcd);
        let work = move || work(&mut etcd.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(work).await?
    }

    async fn plain(&self) -> Result<Client> {
        Ok(Client::connect([&self.endpoint], None).await?)
    }

    async fn end_session(&self, claimant: Option<&Contender>) -> Result<()> {
        let entry = &claimant.context("nobody is there")?.entry;
        let (lease, _) = entry.split_once('-').context("LEASE-CLAIM")?;
        self.plain().await?.lease_revoke(i64::from_str_radix(lease, 16)?).await?;
        Ok(())
    }
}

/// The beginning of the keys of a lock.
pub(crate) fn queue(name: &LockName) -> String {
    format!("lockkit/{}/", name.encode(3 * 1024))
}

#[async_trait]
impl Store for Server {
    fn backend(&self) -> Result<AnyBackend> {
        Ok(AnyBackend::new(self.etcd_backend()?))
    }

    fn address(&self) -> Option<String> {
        Some(self.url())
    }

    async fn inflict(&self, fault: Fault) -> Result<()> {
        match fault {
            Fault::EndSessionOfHolder(name) => {
                self.end_session(self.etcd_backend()?.inspect(&name).await?.holder.as_ref()).await
            }
            Fault::EndSessionOfWaiter(name) => {
                self.end_session(self.etcd_backend()?.inspect(&name).await?.waiters.first()).await
            }
            Fault::DeleteEntries(name) => {
                for key in self.entries(&name).await? {
                    self.plain().await?.delete(key, None).await?;
                }
                Ok(())
            }
            Fault::WriteJunk(name) => {
                for key in self.entries(&name).await? {
                    let keep_lease = PutOptions::new().with_ignore_lease();
                    self.plain().await?.put(key, vec![0xff; 100_000], Some(keep_lease)).await?;
                }
                Ok(())
            }
            Fault::Freeze => self.with(|etcd| etcd.pause()).await,
            Fault::Thaw => self.with(|etcd| etcd.resume()).await,
            Fault::Restart => self.with(Etcd::restart).await,
            Fault::Wipe => self.with(Etcd::wipe).await,
            Fault::ForgetHistory => self.with(|etcd| etcd.compact()).await,
            Fault::FillStore => self.with(|etcd| etcd.set_no_space(true)).await,
            Fault::MakeRoom => self.with(|etcd| etcd.set_no_space(false)).await,
            Fault::ExpireLogins => self.with(|etcd| etcd.expire_logins(USER, PASSWORD)).await,
            other => other.unsupported(),
        }
    }

    async fn backend_for(&self, access: Access) -> Result<AnyBackend> {
        self.beside.backend_for(&access, &self.endpoint).await
    }

    async fn link(&self) -> Result<Arc<dyn Link>> {
        Ok(Arc::new(ProxyLink::new(&self.endpoint, self.login)?))
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let queue = queue(name);
        self.with(move |etcd| etcd.keys(&queue)).await
    }

    async fn requests(&self) -> Result<u64> {
        self.with(|etcd| Ok(etcd.metrics()?.sum("grpc_server_msg_received_total", &[]))).await
    }
}
