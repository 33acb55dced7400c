//! The end of a hold from outside: deletes the holder's node, as a release does.
//!
//! The token of a hold is its node's `czxid`, which ZooKeeper compares in no transaction. It compares names and versions
//! of data. So what a transaction deletes must be identified by these:
//!
//! 1. The node's name in its queue. Numbers rise, so a name belongs to one contender as long as its directory exists; a
//!    name [with an id](keys::identifies_claim) does for good.
//! 2. For the other names, the version of the directory, which is written once before (with its own data). A directory
//!    that is deleted and created again has another one, and the transaction fails.
//! 3. The `czxid` of the node with this name, read after that write, and compared with the token here. It cannot change
//!    before the transaction without 1 or 2 failing.
//!
//! The next waiter is notified by the watch on its predecessor, as after a release. The broken holder learns of it from
//! its next heartbeat, after a tenth of its ttl.
//!
//! Where the lock is one node ([`Form::Single`]), its name is that of every holder and its version always 0. The next
//! holder's node could be deleted instead, so that is refused.
//!
//! Failure cases:
//!
//! * The holder has released, or was broken before: its node is missing, and nothing is deleted.
//! * The reply is lost: the caller gets `Unavailable`. A break that is repeated finds the node gone; the next holder's
//!   node has another name, or another `czxid`.
//! * Two operators break the same hold: one of them deletes the node, or has to mark the directory again.
//! * The server refuses (its ACL): deleting needs the permission `d` of the directory, marking it `r` and `w`.

use lockkit_core::{
    ErrorKind, LockName, Result,
    backend::{Contender, retry_pauses},
    support::bounded,
};
use zookeeper_client::{Error as ClientError, MultiWriteError};

use crate::{
    ZkBackend,
    error::{Effect, RequestError, failed_operation},
    keys::{self, Form},
    sequence::in_order,
    wire::{CreatedNode, Server},
};

/// How often the directory is marked again because somebody else has written it meanwhile.
const MARK_TRIES: u32 = 5;

const SINGLE: &str = "a lock that is one node cannot be broken safely: ZooKeeper deletes by name, and the next holder's \
    node has the same one; end the holder's process instead, or stop all clients of the lock and delete the node";

impl ZkBackend {
    pub(super) async fn end_hold(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        let layout = self.config.layout();
        let lock = layout.lock(name)?;
        let broken = async {
            if layout.form == Form::Single {
                return Err(unsupported());
            }
            let server = self.open().await?;
            let broken = bounded(self.config.request_timeout, server.end_hold(&lock, holder)).await;
            self.close(server).await;
            broken
        };
        broken.await.map_err(|error| error.of_own_session().into_error("break").with_lock(name))
    }
}

fn unsupported() -> RequestError {
    RequestError::new(Effect::Refused, ErrorKind::Unsupported, SINGLE)
}

/// What became of the transaction that deletes a holder's node.
enum Deletion {
    Done,
    /// Nothing is deleted: the node is gone.
    Gone,
    /// Nothing is deleted: the directory has another version.
    OtherDirectory,
}

impl Server {
    async fn end_hold(&self, lock: &str, holder: &Contender) -> Result<bool, RequestError> {
        let mut pauses = retry_pauses();
        for tries in 0..MARK_TRIES {
            if tries > 0 {
                // Two operators who repeat this in step would undo each other's marks every time.
                pauses.wait().await;
            }
            let version = match keys::identifies_claim(&holder.entry) {
                true => None,
                false => match self.mark(lock).await {
                    Ok(version) => Some(version),
                    Err(error) if error.effect == Effect::Missing => return Ok(false),
                    Err(error) if error.effect == Effect::OtherVersion => continue,
                    Err(error) => return Err(error),
                },
            };
            let Some(node) = self.held_node(lock, holder).await? else { return Ok(false) };
            match self.delete_holder(lock, version, &node).await? {
                Deletion::Done => return Ok(true),
                Deletion::Gone => return Ok(false),
                Deletion::OtherDirectory => {}
            }
        }
        Err(RequestError::new(
            Effect::Busy,
            ErrorKind::Unavailable,
            format!("others write {lock}; try again"),
        ))
    }

    /// Writes the directory's own data to it; returns their new version, which no later directory of this name has.
    async fn mark(&self, lock: &str) -> Result<i32, RequestError> {
        let (data, stat) = self.data(lock).await?;
        if stat.ephemeral_owner != 0 {
            return Ok(stat.version);
        }
        let (client, sent) = (self.client()?, self.liveness.now());
        let written = client.set_data(lock, &data, Some(stat.version));
        self.through_leader(sent, written).await.map(|stat| stat.version)
    }

    /// Returns the path of this contender's node if it holds the lock.
    async fn held_node(&self, lock: &str, holder: &Contender) -> Result<Option<String>, RequestError> {
        let queue = match self.children(lock).await {
            Err(error) if error.effect == Effect::Missing => return Ok(None),
            children => in_order(children?),
        };
        let (path, is_single) = match queue.first() {
            Some(first) if *first == holder.entry => (format!("{lock}/{first}"), false),
            Some(_) => return Ok(None),
            None => (lock.to_owned(), true),
        };
        let Some(stat) = self.stat(&path).await? else { return Ok(None) };
        // A persistent node without contenders is an empty directory.
        if is_single && stat.ephemeral_owner == 0 {
            return Ok(None);
        }
        if holder.token != Some(CreatedNode::token_of(stat.czxid)) {
            return Ok(None);
        }
        if is_single { Err(unsupported()) } else { Ok(Some(path)) }
    }

    /// Deletes this node, in one transaction with a check of its directory's version if there is one to check.
    async fn delete_holder(
        &self,
        lock: &str,
        version: Option<i32>,
        node: &str,
    ) -> Result<Deletion, RequestError> {
        let (client, sent) = (self.client()?, self.liveness.now());
        let mut writes = client.new_multi_writer();
        if let Some(version) = version {
            writes.add_check_version(lock, version)?;
        }
        writes.add_delete(node, None)?;
        let committed = writes.commit();
        self.through_leader(sent, async { deletion(committed.await) }).await
    }
}

/// Returns what the answer to a check of the directory and a deletion says.
fn deletion<T>(answer: Result<T, MultiWriteError>) -> Result<Deletion, ClientError> {
    match failed_operation(answer)? {
        None => Ok(Deletion::Done),
        Some((_, ClientError::NoNode)) => Ok(Deletion::Gone),
        Some((_, ClientError::BadVersion)) => Ok(Deletion::OtherDirectory),
        Some((_, error)) => Err(error),
    }
}
