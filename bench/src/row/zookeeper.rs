//! ZooKeeper: create and list in one flight, watch the predecessor, delete. Nothing is repeated, checked or cleaned up.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use futures_util::future::try_join;
use zookeeper_client::{Acls, Client as ZooKeeper, CreateMode};

use super::{Client, Contender};
use crate::job::Job;

struct Raw(ZooKeeper);

struct RawContender {
    client: ZooKeeper,
    directory: String,
    /// The path of the node that it holds.
    own: String,
}

pub(super) async fn connect(job: &Job) -> Result<Box<dyn Client>> {
    let connector = ZooKeeper::connector().with_session_timeout(Duration::from_millis(job.ttl_ms));
    Ok(Box::new(Raw(connector.connect(job.servers.first().context("no server")?).await?)))
}

#[async_trait]
impl Client for Raw {
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>> {
        let (client, directory) = (self.0.clone(), format!("/raw/{name}"));
        client.mkdir(&directory, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(Box::new(RawContender { client, directory, own: String::new() }))
    }

    /// Waits until the session has ended at the server, which it does when no client is left.
    async fn close(self: Box<Self>) -> Result<()> {
        let mut states = self.0.state_watcher();
        drop(self);
        while !states.changed().await.is_terminated() {}
        Ok(())
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/n-", self.directory);
        // Requests are sent in the order in which their futures are made.
        let create = self.client.create(&prefix, b"", &options);
        let list = self.client.list_children(&self.directory);
        let ((_, number), mut children) = try_join(create, list).await?;
        let own = format!("n-{number}");
        self.own = format!("{}/{own}", self.directory);
        loop {
            let Some(before) = children.into_iter().filter(|child| *child < own).max() else { return Ok(()) };
            let before = format!("{}/{before}", self.directory);
            if let Ok((_, _, watcher)) = self.client.get_and_watch_data(&before).await {
                watcher.changed().await;
            }
            children = self.client.list_children(&self.directory).await?;
        }
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.client.delete(&self.own, None).await?)
    }
}
