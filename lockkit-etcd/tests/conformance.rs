//! The conformance suite on a real etcd.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use etcd_client::{Client, PutOptions};
use lockkit_conformance::{AnyBackend, Fault, Harness, Hook, Link, Rounds, Sharing, Store, Time};
use lockkit_core::{
    LockName,
    backend::{Admin, Backend, BackendInfo, BackendUrl, Contender},
};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::Etcd;

fn main() -> ExitCode {
    lockkit_conformance::main(EtcdHarness::default())
}

#[derive(Debug, Default)]
struct EtcdHarness {
    shared: Mutex<Option<Arc<Server>>>,
}

impl Harness for EtcdHarness {
    fn name(&self) -> String {
        "etcd".to_owned()
    }

    fn info(&self) -> BackendInfo {
        EtcdBackend::new(EtcdConfig::new(["127.0.0.1"]).unwrap()).info()
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn rounds(&self) -> Rounds {
        Rounds::Few
    }

    fn hooks(&self) -> Vec<Hook> {
        vec![
            Hook::Processes,
            Hook::Entries,
            Hook::Requests,
            Hook::EndSessionOfHolder,
            Hook::EndSessionOfWaiter,
            Hook::DeleteEntries,
            Hook::WriteJunk,
            Hook::Freeze,
            Hook::Restart,
        ]
    }

    fn parallel(&self) -> usize {
        8
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        if sharing == Sharing::Own {
            return Ok(Arc::new(Server::start()?));
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.is_none() {
            *shared = Some(Arc::new(Server::start()?));
        }
        Ok(Arc::clone(shared.as_ref().context("just started")?) as Arc<dyn Store>)
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        Ok(AnyBackend::new(EtcdBackend::new(EtcdConfig::from_url(BackendUrl::parse(address)?)?)))
    }
}

/// A server of its own. Its methods block, so they run beside the executor.
#[derive(Debug)]
struct Server {
    etcd: Arc<Mutex<Etcd>>,
    url: String,
    endpoint: String,
}

impl Server {
    fn start() -> Result<Self> {
        let etcd = Etcd::start()?;
        let (url, endpoint) = (etcd.url(), etcd.endpoint());
        Ok(Self { etcd: Arc::new(Mutex::new(etcd)), url, endpoint })
    }

    fn etcd_backend(&self) -> Result<EtcdBackend> {
        Ok(EtcdBackend::new(EtcdConfig::from_url(BackendUrl::parse(&self.url)?)?))
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
fn queue(name: &LockName) -> String {
    format!("lockkit/{}/", name.encode(3 * 1024))
}

#[async_trait]
impl Store for Server {
    fn backend(&self) -> Result<AnyBackend> {
        Ok(AnyBackend::new(self.etcd_backend()?))
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
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
        }
    }

    async fn link(&self) -> Result<Arc<dyn Link>> {
        bail!("the harness has no proxy")
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let queue = queue(name);
        self.with(move |etcd| etcd.keys(&queue)).await
    }

    async fn requests(&self) -> Result<u64> {
        self.with(|etcd| Ok(etcd.metrics()?.sum("grpc_server_msg_received_total", &[]))).await
    }
}
