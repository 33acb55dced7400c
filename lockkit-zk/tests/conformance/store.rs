//! A ZooKeeper server for the suite.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use lockkit_conformance::{Access, AnyBackend, ClientLink, Entry, Store, StoreFault};
use lockkit_core::{
    LockName,
    backend::{Admin, Contender, Evidence},
};
use lockkit_testbed::{Blocking, Proxy, ProxyLink, Taken, ZooKeeper};
use tokio::time::Instant;
use zookeeper_client::{Acls, Client, CreateMode, MultiWriteError};

use crate::{access::ExtraServers, backend, connect, own};

/// The tick of the testbed's servers. Clients that do not know it assume a longer one, which shortens their leases.
pub(crate) const OPTIONS: &str = "?tick=500ms";

/// Gives everybody all permissions, even where clients log in.
pub(crate) const OPEN: &str = "&acl=world:anyone:cdrwa";

/// User and password where clients log in.
pub(crate) const LOGIN: &str = "app:secret";

/// A ZooKeeper server, with a proxy in front of it.
#[derive(Debug)]
pub(crate) struct Server {
    zookeeper: Blocking<Taken<ZooKeeper>>,
    /// The proxy of all clients; it refuses connections for a moment while a session is ended.
    gate: Arc<Proxy>,
    url: String,
    /// Reads of the server's counters so far, which count themselves.
    counter_reads: AtomicU64,
    extra_servers: ExtraServers,
}

impl Server {
    pub(crate) fn start() -> Result<Self> {
        let zookeeper = own::server()?;
        let gate = Arc::new(Proxy::start(zookeeper.endpoint())?);
        let url = format!("zk://{}{OPTIONS}", gate.endpoint());
        let zookeeper = Blocking::new(zookeeper);
        Ok(Self {
            zookeeper,
            gate,
            url,
            counter_reads: AtomicU64::new(0),
            extra_servers: ExtraServers::default(),
        })
    }

    pub(crate) fn start_with_login() -> Result<Self> {
        let server = Self::start()?;
        let url = format!("zk://{LOGIN}@{}{OPTIONS}{OPEN}", server.gate.endpoint());
        Ok(Self { url, ..server })
    }

    /// Ends the session that owns this contender's node.
    async fn end_session(&self, name: &LockName, contender: Option<&Contender>) -> Result<()> {
        let path = format!("{}/{}", directory(name), contender.context("no such contender")?.entry);
        let gate = Arc::clone(&self.gate);
        self.zookeeper
            .with(move |zookeeper| {
                let of = |paths: &Vec<String>| paths.contains(&path);
                let sessions = zookeeper.ephemerals()?;
                let (session, _) =
                    sessions.iter().find(|(_, paths)| of(paths)).context("no session has it")?;
                gate.hold_new();
                let ended = zookeeper.end_session(*session);
                gate.pass();
                ended
            })
            .await
    }
}

/// Returns the directory of a lock's claims.
pub(crate) fn directory(name: &LockName) -> String {
    format!("/lockkit/{}", name.encode(512))
}

/// Returns the nodes of all claims of a lock in order; none if the directory is missing.
pub(crate) fn entries(zookeeper: &ZooKeeper, name: &LockName) -> Result<Vec<String>> {
    let directory = directory(name);
    let mut children = zookeeper.children(&directory)?;
    // By the text after the last dash: the number.
    children.sort_by_cached_key(|child| child.rsplit('-').next().unwrap_or_default().to_owned());
    Ok(children.iter().map(|child| format!("{directory}/{child}")).collect())
}

/// Returns all nodes of the tree.
pub(crate) fn contents(zookeeper: &ZooKeeper) -> Result<Vec<Entry>> {
    let of_sessions: BTreeSet<String> = zookeeper.ephemerals()?.into_values().flatten().collect();
    let of_server = |place: &String| place == "/zookeeper" || place.starts_with("/zookeeper/");
    let places = zookeeper.tree("/")?.into_iter().filter(|place| !of_server(place));
    Ok(places
        .map(|place| {
            let is_bounded = of_sessions.contains(&place);
            Entry::new(place, is_bounded)
        })
        .collect())
}

#[async_trait]
impl Store for Server {
    fn backend(&self) -> Result<AnyBackend> {
        Ok(AnyBackend::new(backend(&self.url)?))
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match fault {
            StoreFault::EndSessionOfHolder(name) => {
                let found = backend(&self.url)?.inspect(&name).await?;
                self.end_session(&name, found.holder.as_ref()).await
            }
            StoreFault::EndSessionOfWaiter(name) => {
                let found = backend(&self.url)?.inspect(&name).await?;
                self.end_session(&name, found.waiters.first()).await
            }
            StoreFault::DeleteEntries(name) => {
                self.zookeeper
                    .with(move |zookeeper| {
                        // Starting with the last: otherwise a waiter could be granted meanwhile.
                        let nodes = entries(zookeeper, &name)?;
                        nodes.iter().rev().try_for_each(|node| zookeeper.delete(node).map(drop))
                    })
                    .await
            }
            StoreFault::WriteJunk(name) => {
                let junk = vec![0xff; 100_000];
                self.zookeeper
                    .with(move |zookeeper| {
                        entries(zookeeper, &name)?.iter().try_for_each(|node| zookeeper.write(node, &junk))
                    })
                    .await
            }
            StoreFault::Freeze => self.zookeeper.with(|zookeeper| zookeeper.pause()).await,
            StoreFault::Thaw => self.zookeeper.with(|zookeeper| zookeeper.resume()).await,
            StoreFault::Restart => self.zookeeper.with(|zookeeper| zookeeper.restart()).await,
            StoreFault::Stop => self.zookeeper.with(|zookeeper| zookeeper.kill()).await,
            StoreFault::Start => self.zookeeper.with(|zookeeper| zookeeper.restart()).await,
            StoreFault::Wipe => self.zookeeper.with(|zookeeper| zookeeper.wipe()).await,
            other => other.unsupported(),
        }
    }

    async fn backend_for(&self, access: Access) -> Result<AnyBackend> {
        self.extra_servers.backend_for(&access, &self.gate.endpoint()).await
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        link_to(self.gate.endpoint())
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let name = name.clone();
        self.zookeeper.with(move |zookeeper| entries(zookeeper, &name)).await
    }

    async fn requests(&self) -> Result<u64> {
        let counter_reads = self.counter_reads.fetch_add(1, SeqCst);
        self.zookeeper
            .with(move |zookeeper| Ok(zookeeper.metrics()?.packets_received() - counter_reads))
            .await
    }

    async fn bare_notification(&self) -> Result<Duration> {
        let endpoint = self.gate.endpoint();
        let (writer, watcher) = (Client::connect(&endpoint).await?, Client::connect(&endpoint).await?);
        let path = format!("/bare-{}", writer.session_id().0);
        writer.create(&path, b"", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).await?;
        let (_, _, changed) = watcher.get_and_watch_data(&path).await?;
        let start = Instant::now();
        writer.delete(&path, None).await?;
        changed.changed().await;
        Ok(start.elapsed())
    }

    async fn proves(&self, evidence: &Evidence) -> Result<bool> {
        let Evidence::NodeExists { path, .. } = evidence else { bail!("not of ZooKeeper: {evidence:?}") };
        let client = Client::connect(&self.gate.endpoint()).await?;
        let mut checks = client.new_multi_writer();
        checks.add_check_version(path, -1)?;
        match checks.commit().await {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed { source: zookeeper_client::Error::NoNode, .. }) => {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        self.zookeeper.with(|zookeeper| contents(zookeeper)).await
    }

    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        self.zookeeper
            .with(|zookeeper| {
                let (sessions, connections) = (zookeeper.sessions()?, zookeeper.connections()?.len() as u64);
                let watches = zookeeper.watches()?;
                Ok([("sessions", sessions), ("connections", connections), ("watches", watches)].into())
            })
            .await
    }

    async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        let name = name.clone();
        self.zookeeper
            .with(move |zookeeper| match entries(zookeeper, &name)?.first() {
                Some(holder) => zookeeper.lifetime(holder),
                None => Ok(None),
            })
            .await
    }
}

/// Starts a proxy in front of one server, as the link of a client.
pub(crate) fn link_to(endpoint: String) -> Result<Arc<dyn ClientLink>> {
    let proxy = Proxy::start_zookeeper(endpoint)?;
    let url = format!("zk://{}{OPTIONS}", proxy.endpoint());
    Ok(Arc::new(ProxyLink::new(vec![proxy], url, connect)))
}
