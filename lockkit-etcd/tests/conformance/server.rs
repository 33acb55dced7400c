//! A single server as the store of the suite.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use lockkit_conformance::{Access, AnyBackend, ClientLink, Entry, Store, StoreFault};
use lockkit_core::{
    LockName,
    backend::{Admin, Contender, Evidence},
};
use lockkit_etcd::EtcdBackend;
use lockkit_testbed::{Blocking, Etcd, Pool, SmallDisk, Taken};
use tokio::time::Instant;

use crate::{access::ExtraServers, backend, forms::Form, link};

/// The login of servers with authentication.
const USER: &str = "app";
pub(crate) const PASSWORD: &str = "secret";
const LOGIN: &str = "app:secret@";

/// Space for the log that a server reserves in advance, and some more.
const DISK_BYTES: u64 = 256 << 20;

/// A key that fills the disk.
pub(crate) const BALLAST: &str = "ballast";

/// A single server.
#[derive(Debug)]
pub(crate) struct Server {
    form: &'static Form,
    etcd: Arc<Blocking<Taken<Etcd>>>,
    endpoint: String,
    /// `USER:PASSWORD@`, or empty.
    login: &'static str,
    extra: ExtraServers,
    /// The small disk with its data, if it has one.
    disk: Option<SmallDisk>,
}

impl Server {
    pub(crate) fn start(form: &'static Form) -> Result<Self> {
        static SERVERS: Pool<Etcd> = Pool::new();
        // A server whose Lock RPC has ended cannot be told from another one.
        let etcd = if form.has_own_servers {
            Etcd::start()?.into()
        } else {
            SERVERS.take(Etcd::clear, Etcd::start)?
        };
        Ok(Self::of(form, etcd, ""))
    }

    pub(crate) fn start_on_small_disk(form: &'static Form) -> Result<Self> {
        let disk = SmallDisk::mount(DISK_BYTES)?;
        let etcd = Etcd::start_in(disk.path())?;
        Ok(Self { disk: Some(disk), ..Self::of(form, etcd.into(), "") })
    }

    pub(crate) fn start_with_login(form: &'static Form) -> Result<Self> {
        let mut etcd = Etcd::start()?;
        etcd.enable_auth(USER, PASSWORD)?;
        Ok(Self::of(form, etcd.into(), LOGIN))
    }

    fn of(form: &'static Form, etcd: Taken<Etcd>, login: &'static str) -> Self {
        let (endpoint, extra) = (etcd.endpoint(), ExtraServers::default());
        Self { form, etcd: Arc::new(Blocking::new(etcd)), endpoint, login, extra, disk: None }
    }

    /// The same server for another form.
    pub(crate) fn shared_with(&self, form: &'static Form) -> Self {
        let (etcd, endpoint) = (Arc::clone(&self.etcd), self.endpoint.clone());
        Self { form, etcd, endpoint, login: self.login, extra: ExtraServers::default(), disk: None }
    }

    fn url(&self) -> String {
        format!("etcd://{}{}{}", self.login, self.endpoint, self.form.tail("3s"))
    }

    fn etcd_backend(&self) -> Result<EtcdBackend> {
        backend(&self.url())
    }

    fn disk(&self) -> Result<&SmallDisk> {
        self.disk.as_ref().context("the server has no disk of its own")
    }

    async fn plain(&self) -> Result<Client> {
        Ok(Client::connect([&self.endpoint], None).await?)
    }

    async fn end_session(&self, name: &LockName, claimant: Option<&Contender>) -> Result<()> {
        let key = self.form.key(name, &claimant.context("nobody is there")?.entry);
        let mut client = self.plain().await?;
        let found = client.get(key, None).await?;
        let entry = found.kvs().first().context("its key is gone")?;
        client.lease_revoke(entry.lease()).await?;
        Ok(())
    }
}

/// Returns all entries of the store.
pub(crate) fn entries_of(etcd: &Etcd) -> Result<Vec<Entry>> {
    let entry = |(place, is_bounded): (String, bool)| Entry::new(place, is_bounded);
    Ok(etcd.leased()?.into_iter().map(entry).collect())
}

#[async_trait]
impl Store for Server {
    fn backend(&self) -> Result<AnyBackend> {
        Ok(AnyBackend::new(self.etcd_backend()?))
    }

    fn address(&self) -> Option<String> {
        Some(self.url())
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match fault {
            StoreFault::EndSessionOfHolder(name) => {
                self.end_session(&name, self.etcd_backend()?.inspect(&name).await?.holder.as_ref()).await
            }
            StoreFault::EndSessionOfWaiter(name) => {
                self.end_session(&name, self.etcd_backend()?.inspect(&name).await?.waiters.first()).await
            }
            StoreFault::DeleteEntries(name) => {
                let deletions = self.entries(&name).await?.into_iter().map(|key| TxnOp::delete(key, None));
                // At once: a waiter could be granted between two deletions.
                let all = Txn::new().and_then(deletions.collect::<Vec<_>>());
                self.plain().await?.txn(all).await?;
                Ok(())
            }
            StoreFault::WriteJunk(name) => {
                for key in self.entries(&name).await? {
                    let keep_lease = PutOptions::new().with_ignore_lease();
                    self.plain().await?.put(key, vec![0xff; 100_000], Some(keep_lease)).await?;
                }
                Ok(())
            }
            StoreFault::Freeze => self.etcd.with(|etcd| etcd.pause()).await,
            StoreFault::Thaw => self.etcd.with(|etcd| etcd.resume()).await,
            StoreFault::Restart => self.etcd.with(|etcd| etcd.restart()).await,
            StoreFault::Stop => self.etcd.with(|etcd| etcd.kill()).await,
            StoreFault::Start => self.etcd.with(|etcd| etcd.restart()).await,
            StoreFault::Wipe => self.etcd.with(|etcd| etcd.wipe()).await,
            StoreFault::ForgetHistory => self.etcd.with(|etcd| etcd.compact()).await,
            StoreFault::FillStore => self.etcd.with(|etcd| etcd.set_no_space(true)).await,
            StoreFault::MakeRoom => self.etcd.with(|etcd| etcd.set_no_space(false)).await,
            StoreFault::ExpireLogins => self.etcd.with(|etcd| etcd.expire_logins(USER, PASSWORD)).await,
            StoreFault::FillDisk => {
                self.disk()?.fill()?;
                // The space of its log is reserved, so these writes fill its database until the server stops.
                self.etcd
                    .with(|etcd| {
                        let value = "x".repeat(512 << 10);
                        while etcd.put(BALLAST, &value).is_ok() {}
                        Ok(())
                    })
                    .await
            }
            StoreFault::EmptyDisk => {
                self.disk()?.make_room()?;
                self.etcd.with(|etcd| etcd.restart()).await
            }
            other => other.unsupported(),
        }
    }

    async fn backend_for(&self, access: Access) -> Result<AnyBackend> {
        self.extra.backend_for(&access, &self.endpoint, self.form).await
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        link::to(&self.endpoint, self.login, self.form)
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let (form, name) = (self.form, name.clone());
        let keys = self.etcd.with(|etcd| etcd.keys("")).await?;
        Ok(keys.into_iter().filter(|key| form.is_of(&name, key)).collect())
    }

    async fn requests(&self) -> Result<u64> {
        self.etcd.with(|etcd| Ok(etcd.metrics()?.sum("grpc_server_msg_received_total", &[]))).await
    }

    async fn bare_notification(&self) -> Result<Duration> {
        const KEY: &str = "bare/notification";
        let (mut writer, mut watcher) = (self.plain().await?, self.plain().await?);
        let mut watch = watcher.watch(KEY, None).await?;
        ensure!(watch.message().await?.context("no watch")?.created(), "not watched");
        let start = Instant::now();
        writer.put(KEY, "", None).await?;
        while watch.message().await?.context("the watch has ended")?.events().is_empty() {}
        let took = start.elapsed();
        writer.delete(KEY, None).await?;
        Ok(took)
    }

    async fn reports_at_once(&self) -> Result<bool> {
        self.etcd.with(|etcd| Ok(etcd.metrics()?.unsynced_watchers() == 0)).await
    }

    async fn proves(&self, evidence: &Evidence) -> Result<bool> {
        let Evidence::CreateRevision { key, revision, .. } = evidence else {
            bail!("not of etcd: {evidence:?}")
        };
        let compare = Compare::create_revision(&**key, CompareOp::Equal, *revision);
        Ok(self.plain().await?.txn(Txn::new().when([compare])).await?.succeeded())
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        self.etcd.with(|etcd| entries_of(etcd)).await
    }

    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        self.etcd
            .with(|etcd| {
                let (metrics, leases) = (etcd.metrics()?, etcd.leases()? as u64);
                Ok([("leases", leases), ("watches", metrics.watchers()), ("streams", metrics.streams())]
                    .into())
            })
            .await
    }

    async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        let entries = self.entries(name).await?;
        let Some(holder) = entries.first() else { return Ok(None) };
        let mut client = self.plain().await?;
        let found = client.get(holder.as_str(), None).await?;
        let Some(entry) = found.kvs().first() else { return Ok(None) };
        // In whole seconds, rounded down; -1 if the lease has ended.
        let left = client.lease_time_to_live(entry.lease(), None).await?.ttl();
        Ok(u64::try_from(left).ok().map(|seconds| Duration::from_secs(seconds + 1)))
    }
}
