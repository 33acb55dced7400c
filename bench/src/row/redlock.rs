//! Redlock: SET NX on every node, and a script that compares and deletes on every node. Unfenced; all must answer.

use std::sync::Arc;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::{Script, aio::MultiplexedConnection, cmd};

use super::{
    Client, Contender,
    redis::{RELEASE, open, random_value},
};
use crate::job::Job;

struct Raw {
    connections: Vec<MultiplexedConnection>,
    release: Arc<Script>,
    ttl_ms: u64,
}

struct RawContender {
    connections: Vec<MultiplexedConnection>,
    release: Arc<Script>,
    ttl_ms: u64,
    key: String,
    /// The random value of the present hold.
    value: String,
}

pub(super) async fn connect(job: &Job) -> Result<Box<dyn Client>> {
    let connections = try_join_all(job.servers.iter().map(|server| open(server))).await?;
    Ok(Box::new(Raw { connections, release: Arc::new(Script::new(RELEASE)), ttl_ms: job.ttl_ms }))
}

#[async_trait]
impl Client for Raw {
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>> {
        let (connections, release) = (self.connections.clone(), Arc::clone(&self.release));
        let (key, value) = (format!("raw:{name}"), String::new());
        Ok(Box::new(RawContender { connections, release, ttl_ms: self.ttl_ms, key, value }))
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        self.value = random_value();
        let mut set = cmd("SET");
        set.arg(&self.key).arg(&self.value).arg("NX").arg("PX").arg(self.ttl_ms);
        let set = &set;
        let asked = self
            .connections
            .iter_mut()
            .map(|node| async move { set.query_async::<Option<String>>(node).await });
        let votes = try_join_all(asked).await?.into_iter().flatten().count();
        ensure!(votes == self.connections.len(), "{votes} nodes have granted the lock");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let mut release = self.release.prepare_invoke();
        release.key(&self.key).arg(&self.value);
        let release = &release;
        let asked =
            self.connections.iter_mut().map(|node| async move { release.invoke_async::<u64>(node).await });
        let deleted: u64 = try_join_all(asked).await?.into_iter().sum();
        ensure!(deleted == self.connections.len() as u64, "the lock was lost on a node");
        Ok(())
    }
}
