//! One small text per lock name that only the holder can write: [`Records`].
//!
//! A record is a persistent node of its own, in no lock's directory: there, every node with a number is a contender.
//! The transaction that writes it also checks that the holder's node exists. ZooKeeper keeps a record for good, however
//! short it need be kept: one small node per name. Nodes with a ttl exist only where the server enables them.
//!
//! Failure cases:
//!
//! * The hold is over, and the holder does not know it: its node is gone, and no other claim gets a node of that name.
//!   The check fails, and nothing is written.
//! * The reply is lost: the keeper writes again. A transaction expects the version that was read, or that there is no
//!   record yet. So a late copy of an earlier one is refused, and a repeated one finds that it must read again.
//! * The read before the transaction is old: it is refused, and the record is read again, behind a request through the
//!   leader.
//! * The directory of the records is missing, or an operator has deleted the record: it is created (again).
//! * A read by a client that holds nothing goes to a follower, whose copy may be old. So it is sent behind a request
//!   through leader and quorum, too.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    LockName, Result,
    backend::{Grant, Records},
};
use zookeeper_client::{CreateMode, Error as ClientError, MultiWriteError};

use crate::{
    error::{Effect, RequestError, failed_operation},
    session::ZkSession,
    wire::{ANY_VERSION, Server},
};

#[async_trait]
impl Records for ZkSession {
    async fn read(&self, name: &LockName) -> Result<Option<String>> {
        let path = self.layout.record(name)?;
        let read = async {
            // The answer does not matter, only that the request goes through the leader.
            self.server.check(&[&self.client_node]).await?;
            match self.server.data(&path).await {
                Ok((record, _)) => String::from_utf8(record)
                    .map(Some)
                    .map_err(|_| RequestError::unexpected(format!("the record {path} is not UTF-8"))),
                Err(error) if error.effect == Effect::Missing => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.request("read record", name, read).await
    }

    async fn write(&self, grant: &Grant, record: &str, _keep: Duration) -> Result<bool> {
        let Some(granted) = self.granted_nodes.get(grant.claim()) else { return Ok(false) };
        let path = self.layout.record(grant.name())?;
        let written = self.write_record(&granted.node.path, &path, record);
        self.request("write record", grant.name(), written).await
    }
}

impl ZkSession {
    /// Writes a record; returns `false` if the holder's node is gone.
    async fn write_record(&self, holder: &str, path: &str, record: &str) -> Result<bool, RequestError> {
        loop {
            let version = match self.server.data(path).await {
                Ok((_, stat)) => Some(stat.version),
                Err(error) if error.effect == Effect::Missing => None,
                Err(error) => return Err(error),
            };
            match self.server.write_if_exists(holder, path, record, version).await? {
                GuardedWrite::Written => return Ok(true),
                GuardedWrite::NoHolder => return Ok(false),
                GuardedWrite::NoDirectory => self.server.make_directory(&self.layout.records()).await?,
                // Behind a request through the leader, the next read shows the record as it is.
                GuardedWrite::OtherVersion => self.server.check(&[&self.client_node]).await.map(drop)?,
            }
        }
    }
}

/// What became of a write that checks the holder's node.
enum GuardedWrite {
    Written,
    /// Nothing is written: the holder's node is gone.
    NoHolder,
    /// Nothing is written: the record has another version, exists, or is missing.
    OtherVersion,
    /// Nothing is written: the record's directory is missing.
    NoDirectory,
}

impl Server {
    /// Writes a node of this version, or creates it (`None`), if the holder's node exists: in one transaction.
    async fn write_if_exists(
        &self,
        holder: &str,
        path: &str,
        data: &str,
        version: Option<i32>,
    ) -> Result<GuardedWrite, RequestError> {
        let (client, sent) = (self.client()?, self.liveness.now());
        let mut writes = client.new_multi_writer();
        writes.add_check_version(holder, ANY_VERSION)?;
        match version {
            Some(version) => writes.add_set_data(path, data.as_bytes(), Some(version))?,
            None => {
                let options = CreateMode::Persistent.with_acls(self.access.as_acls());
                writes.add_create(path, data.as_bytes(), &options)?;
            }
        }
        let committed = writes.commit();
        self.through_leader(sent, async { guarded_write(committed.await, version.is_none()) }).await
    }
}

/// Returns what the answer to a check and a write says.
fn guarded_write<T>(
    answer: Result<T, MultiWriteError>,
    is_create: bool,
) -> Result<GuardedWrite, ClientError> {
    match failed_operation(answer)? {
        None => Ok(GuardedWrite::Written),
        Some((0, ClientError::NoNode)) => Ok(GuardedWrite::NoHolder),
        Some((_, ClientError::NoNode)) if is_create => Ok(GuardedWrite::NoDirectory),
        Some((_, ClientError::NoNode | ClientError::NodeExists | ClientError::BadVersion)) => {
            Ok(GuardedWrite::OtherVersion)
        }
        Some((_, error)) => Err(error),
    }
}
