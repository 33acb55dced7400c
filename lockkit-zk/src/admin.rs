//! Inspection of a queue without joining it.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    Clock, LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
    limits::TTL_DEFAULT,
};
use zookeeper_client::Stat;

use crate::{
    ZkBackend,
    connect::connect,
    error::{Effect, RequestError},
    liveness::Liveness,
    sequence::in_order,
    wire::{CreatedNode, Server, bounded},
};

/// Most contenders that an inspection returns; the rest of a longer queue is left out.
pub const INSPECTED_CONTENDERS_MAX: usize = 500;

/// Nodes read by one request: those of other programs may hold up to a mebibyte each.
const NODES_PER_READ: usize = 20;

#[async_trait]
impl Admin for ZkBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let lock = self.config.layout().lock(name)?;
        // A new session each time: a kept one would belong to the runtime of its first use.
        let inspection = async {
            let client = connect(&self.config, TTL_DEFAULT).await?;
            let clock = Clock::boot();
            let liveness = Liveness::new(clock.clone(), TTL_DEFAULT, Duration::ZERO, clock.now());
            let server = Server::new(client, liveness, self.config.acl(), self.config.parents);
            let found = bounded(self.config.request_timeout, self.contenders(&server, &lock)).await;
            // If this is not answered, the session ends with its ttl.
            let _ = server.close(self.config.request_timeout).await;
            found
        };
        let mut contenders = inspection
            .await
            .map_err(|error: RequestError| error.into_error("inspect").with_lock(name))?
            .into_iter();
        let holder = contenders.next();
        let waiters = contenders.map(|waiter| Contender::new(waiter.entry, None, waiter.metadata)).collect();
        Ok(Inspection::new(holder, waiters))
    }
}

impl ZkBackend {
    /// Returns all contenders in queue order, of any form: other programs may use another form than this client.
    async fn contenders(&self, server: &Server, lock: &str) -> Result<Vec<Contender>, RequestError> {
        let mut paths: Vec<String> = match server.children(lock).await {
            Err(error) if error.effect == Effect::Missing => Vec::new(),
            children => in_order(children?).iter().map(|child| format!("{lock}/{child}")).collect(),
        };
        if paths.is_empty() {
            // The lock may be a single node.
            paths.push(lock.to_owned());
        }
        let mut contenders = Vec::new();
        for some in paths[..paths.len().min(INSPECTED_CONTENDERS_MAX)].chunks(NODES_PER_READ) {
            let nodes = server.data_of_all(some).await?;
            // Skips nodes that are gone by now or may not be read.
            let found = some.iter().zip(nodes).filter_map(|(path, node)| Some((path, node?)));
            // A persistent node is a directory, not a holder.
            let held = found.filter(|(path, (_, stat))| *path != lock || stat.ephemeral_owner != 0);
            contenders.extend(held.map(|(path, node)| contender(path, &node)));
        }
        Ok(contenders)
    }
}

fn contender(path: &str, (data, stat): &(Vec<u8>, Stat)) -> Contender {
    let created = CreatedNode { path: path.to_owned(), czxid: stat.czxid };
    Contender::new(created.name(), Some(created.token()), Metadata::from_json(data))
}
