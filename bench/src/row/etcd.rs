//! etcd: a transaction that creates the key, and a delete.

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use etcd_client::{Client as Etcd, Compare, CompareOp, KvClient, PutOptions, Txn, TxnOp};

use super::{Client, Contender};
use crate::job::Job;

/// The lease of the keys, in seconds: no run lasts so long, and nothing renews it.
const LEASE_S: i64 = 600;

struct Raw {
    etcd: Etcd,
    lease: i64,
}

struct RawContender {
    kv: KvClient,
    key: String,
    lease: i64,
}

pub(super) async fn connect(job: &Job) -> Result<Box<dyn Client>> {
    let server = job.servers.first().context("no server")?;
    let mut etcd = Etcd::connect([server], None).await?;
    let lease = etcd.lease_grant(LEASE_S, None).await?.id();
    Ok(Box::new(Raw { etcd, lease }))
}

#[async_trait]
impl Client for Raw {
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>> {
        let (kv, key) = (self.etcd.kv_client(), format!("raw/{name}"));
        Ok(Box::new(RawContender { kv, key, lease: self.lease }))
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        self.etcd.lease_revoke(self.lease).await?;
        Ok(())
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        let options = PutOptions::new().with_lease(self.lease);
        let create = Txn::new()
            .when([Compare::create_revision(&*self.key, CompareOp::Equal, 0)])
            .and_then([TxnOp::put(&*self.key, "", Some(options))]);
        ensure!(self.kv.txn(create).await?.succeeded(), "the key exists");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.kv.delete(&*self.key, None).await?;
        Ok(())
    }
}
