//! What an operator asks of the ensemble: who holds a lock ([`inspect`](Admin::inspect)), which locks there are
//! ([`listing`]), and the end of a hold ([`breaking`]).
//!
//! Each request has a session of its own. Opening it is a transaction, so its server has applied everything that was
//! committed before, and the reads that follow are not older.
//!
//! Failure cases:
//!
//! * The lock changes hands between the list of contenders and the reads: nodes that are gone are left out, and the
//!   first one left is the holder.
//! * A node may not be read: it is shown without data. Leaving it out would show the waiter behind it as the holder.
//! * The answer is lost, or the future is dropped: nothing was changed, and the session ends with its ttl.
//! * A call takes longer than the ttl of its session: each answer [extends it](Liveness::extended_by). A request that takes
//!   so long fails as one without an answer.

mod breaking;
mod listing;

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    Clock, LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection, Page},
    limits::TTL_DEFAULT,
    support::bounded,
};
use zookeeper_client::{Error as ClientError, MultiReadResult, Stat};

use crate::{
    ZkBackend,
    connect::{connect, explained},
    error::{Effect, RequestError},
    liveness::Liveness,
    sequence::in_order,
    wire::{CreatedNode, Server},
};

/// Most contenders that an inspection returns; the rest of a longer queue is left out.
pub const INSPECTED_CONTENDERS_MAX: usize = 500;

/// Most of another program's data that an inspection shows for one contender, in characters.
pub const INSPECTED_DATA_CHARS_MAX: usize = 200;

/// Nodes read by one request: those of other programs may hold up to a mebibyte each.
const NODES_PER_READ: usize = 20;

/// A node as an inspection finds it; its data are `None` if they may not be read.
type FoundNode = (Option<Vec<u8>>, Stat);

/// Shows the session of each contender as ZooKeeper's shell does, such as `0x10000a2f5e30001`, but not how long it
/// remains: ZooKeeper reports that to no client. The data of other programs are shown up to
/// [`INSPECTED_DATA_CHARS_MAX`] characters.
#[async_trait]
impl Admin for ZkBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let lock = self.config.layout().lock(name)?;
        let inspection = async {
            let server = self.open().await?;
            let found = bounded(self.config.request_timeout, contenders(&server, &lock)).await;
            self.close(server).await;
            found
        };
        let contenders = inspection
            .await
            .map_err(|error: RequestError| error.of_own_session().into_error("inspect").with_lock(name))?;
        let mut contenders = contenders.into_iter();
        let holder = contenders.next();
        // A token is that of a grant.
        let mut waiters: Vec<Contender> = contenders.collect();
        waiters.iter_mut().for_each(|waiter| waiter.token = None);
        Ok(Inspection::new(holder, waiters))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.list_locks(prefix, after, limit).await
    }

    async fn break_lock(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        self.end_hold(name, holder).await
    }
}

impl ZkBackend {
    /// Opens a session for the requests of one call. One that is kept would belong to the runtime of its first use.
    pub(crate) async fn open(&self) -> Result<Server, RequestError> {
        let client = match connect(&self.config, TTL_DEFAULT).await {
            Ok(client) => client,
            Err(error) => return Err(explained(&self.config, error).await),
        };
        let clock = Clock::boot();
        let liveness = Liveness::new(clock.clone(), TTL_DEFAULT, Some(Duration::ZERO), clock.now());
        Ok(Server::new(client, liveness, self.config.acl(), self.config.parents))
    }

    /// Closes such a session. If this is not answered, it ends with its ttl.
    pub(crate) async fn close(&self, server: Server) {
        let _ = server.close(self.config.request_timeout).await;
    }
}

/// Returns all contenders in queue order, of any form: other programs may use another form than this client.
async fn contenders(server: &Server, lock: &str) -> Result<Vec<Contender>, RequestError> {
    let mut paths: Vec<String> = match server.liveness.extended_by(server.children(lock)).await {
        Err(error) if error.effect == Effect::Missing => Vec::new(),
        children => in_order(children?).iter().map(|child| format!("{lock}/{child}")).collect(),
    };
    if paths.is_empty() {
        // The lock may be a single node.
        paths.push(lock.to_owned());
    }
    let mut contenders = Vec::new();
    for some in paths[..paths.len().min(INSPECTED_CONTENDERS_MAX)].chunks(NODES_PER_READ) {
        let nodes = server.liveness.extended_by(server.nodes(some)).await?;
        let found = some.iter().zip(nodes).filter_map(|(path, node)| Some((path, node?)));
        // A persistent node is a directory, not a holder.
        let held = found.filter(|(path, (_, stat))| *path != lock || stat.ephemeral_owner != 0);
        contenders.extend(held.map(|(path, node)| contender(path, &node)));
    }
    Ok(contenders)
}

impl Server {
    /// Reads several nodes; `None` for one that is missing.
    async fn nodes(&self, paths: &[String]) -> Result<Vec<Option<FoundNode>>, RequestError> {
        let client = self.client()?;
        let mut reads = client.new_multi_reader();
        for path in paths {
            reads.add_get_data(path)?;
        }
        let mut nodes = Vec::with_capacity(paths.len());
        for (path, result) in paths.iter().zip(self.multi_read(reads, paths.len()).await?) {
            nodes.push(match result {
                MultiReadResult::Data { data, stat } => Some((Some(data), stat)),
                // Metadata need no permission.
                MultiReadResult::Error { err: ClientError::NoAuth } => {
                    self.stat(path).await?.map(|stat| (None, stat))
                }
                MultiReadResult::Error { err: ClientError::NoNode } => None,
                MultiReadResult::Error { err } => return Err(err.into()),
                _ => return Err(RequestError::unexpected("a read of data was answered with something else")),
            });
        }
        Ok(nodes)
    }
}

fn contender(path: &str, (data, stat): &FoundNode) -> Contender {
    let created = CreatedNode { path: path.to_owned(), czxid: stat.czxid };
    let data = data.as_deref().unwrap_or_default();
    let metadata = Metadata::from_json(data);
    let foreign = metadata.is_none().then(|| String::from_utf8_lossy(data));
    let mut contender = Contender::new(created.name(), Some(created.token()), metadata);
    if stat.ephemeral_owner != 0 {
        contender = contender.with_session(format!("{:#x}", stat.ephemeral_owner));
    }
    match foreign.filter(|text| !text.is_empty()) {
        Some(text) => contender.with_data(text.chars().take(INSPECTED_DATA_CHARS_MAX).collect::<String>()),
        None => contender,
    }
}
