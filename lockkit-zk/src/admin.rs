//! Looking into a queue without being in it.

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
    call::{Created, Server, bounded},
    connect::connect,
    error::{Effect, Fault},
    proof::Proof,
    sequence::in_order,
};

/// Contenders that an inspection shows; a longer queue is cut off behind them.
pub const INSPECTED_CONTENDERS_MAX: usize = 500;

/// Nodes that are read by one request: those of other programs may hold up to a mebibyte each.
const NODES_PER_READ: usize = 20;

#[async_trait]
impl Admin for ZkBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let lock = self.config.layout().lock(name)?;
        // A session of its own: a kept one would belong to the runtime that first asked.
        let look = async {
            let client = connect(&self.config, TTL_DEFAULT).await?;
            let clock = Clock::boot();
            let proof = Proof::new(clock.clone(), TTL_DEFAULT, Duration::ZERO, clock.now());
            let server = Server::new(client, proof, self.config.acl(), self.config.parents);
            let found = bounded(self.config.request_timeout, self.contenders(&server, &lock)).await;
            // Without the answer the session ends with its ttl.
            let _ = server.close(self.config.request_timeout).await;
            found
        };
        let mut contenders =
            look.await.map_err(|fault: Fault| fault.into_error("inspect").with_lock(name))?.into_iter();
        let holder = contenders.next();
        let waiters = contenders.map(|waiter| Contender::new(waiter.entry, None, waiter.metadata)).collect();
        Ok(Inspection::new(holder, waiters))
    }
}

impl ZkBackend {
    /// All contenders in the order of service, of whatever form: other programs may use another one than this client.
    async fn contenders(&self, server: &Server, lock: &str) -> Result<Vec<Contender>, Fault> {
        let mut paths: Vec<String> = match server.children(lock).await {
            Err(fault) if fault.effect == Effect::Missing => Vec::new(),
            children => in_order(children?).iter().map(|child| format!("{lock}/{child}")).collect(),
        };
        if paths.is_empty() {
            // The lock may be one node.
            paths.push(lock.to_owned());
        }
        let mut contenders = Vec::new();
        for some in paths[..paths.len().min(INSPECTED_CONTENDERS_MAX)].chunks(NODES_PER_READ) {
            let nodes = server.data_of_all(some).await?;
            // Those that have gone since are left out; those that may not be read as well.
            let found = some.iter().zip(nodes).filter_map(|(path, node)| Some((path, node?)));
            // A lasting node is a directory, and holds no lock itself.
            let held = found.filter(|(path, (_, stat))| *path != lock || stat.ephemeral_owner != 0);
            contenders.extend(held.map(|(path, node)| contender(path, &node)));
        }
        Ok(contenders)
    }
}

fn contender(path: &str, (data, stat): &(Vec<u8>, Stat)) -> Contender {
    let created = Created { path: path.to_owned(), czxid: stat.czxid };
    Contender::new(created.name(), Some(created.token()), Metadata::from_json(data))
}
