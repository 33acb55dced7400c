//! Deletes nodes whose name may become that of another claim's node.
//!
//! There, a deletion without an answer is a danger: the server may execute it [late](super::late_creates), when the next
//! holder's node has the name. So each one is sent in an epoch, the version of the client's own node, which its
//! transaction checks. If it is not answered, the client begins the next epoch before it deletes again: whatever is not
//! executed by then is refused.
//!
//! Failure cases:
//!
//! * The answer to the beginning of an epoch is lost: the caller repeats its deletion, and that begins another one.
//! * Another call has begun the next epoch meanwhile: this deletion had no effect, and is sent in the new one.
//! * An operator deletes the client's own node: it is created again, and written until its version is above the last. Until
//!   then a deletion of an earlier epoch may be executed.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use lockkit_core::{ErrorKind, support::lock};
use zookeeper_client::{Error as ClientError, MultiWriteError};

use super::heartbeat::create_client_node;
use crate::{
    error::{Effect, RequestError, failed_operation},
    keys::Layout,
    wire::{CreatedNode, Server},
};

/// How often a deletion is sent because another call has begun the next epoch meanwhile.
const DELETION_TRIES: u32 = 10;

/// The epoch of a session, and the deletions whose answer is not known.
#[derive(Debug, Default)]
pub(crate) struct Epochs(Mutex<EpochRecord>);

#[derive(Debug, Default)]
struct EpochRecord {
    current: i32,
    /// In which epoch the node that this transaction created was to be deleted.
    unanswered: HashMap<i64, i32>,
}

impl Epochs {
    /// Remembers a deletion that is not answered yet; returns the epoch in which it is sent.
    fn sent(&self, node: &CreatedNode) -> i32 {
        let mut epochs = self.lock();
        let current = epochs.current;
        epochs.unanswered.insert(node.czxid, current);
        current
    }

    fn answered(&self, node: &CreatedNode) {
        self.lock().unanswered.remove(&node.czxid);
    }

    /// Whether this node was to be deleted in the current epoch.
    fn is_unanswered(&self, node: &CreatedNode) -> bool {
        let epochs = self.lock();
        epochs.unanswered.get(&node.czxid).is_some_and(|epoch| *epoch >= epochs.current)
    }

    fn lock(&self) -> MutexGuard<'_, EpochRecord> {
        lock(&self.0)
    }
}

impl Server {
    /// Deletes this node, but no later one of the same name.
    pub(crate) async fn delete_recurring(
        &self,
        layout: &Layout,
        node: &CreatedNode,
    ) -> Result<(), RequestError> {
        for _ in 0..DELETION_TRIES {
            self.pass_unanswered(layout, node).await?;
            let is_there = match self.data(&node.path).await {
                Ok((_, stat)) => stat.czxid == node.czxid,
                Err(error) if error.effect == Effect::Missing => false,
                Err(error) => return Err(error),
            };
            if !is_there {
                self.epochs.answered(node);
                return Ok(());
            }
            let epoch = self.epochs.sent(node);
            let is_done = self.delete_in_epoch(layout, epoch, &node.path).await?;
            self.epochs.answered(node);
            if is_done {
                return Ok(());
            }
            if self.epochs.lock().current <= epoch {
                self.begin_epoch(layout).await?;
            }
        }
        let what = "other releases of this client came first; try again";
        Err(RequestError::new(Effect::Busy, ErrorKind::Unavailable, what))
    }

    /// After this, an earlier deletion of this node has been executed, and this server shows that, or it never will be.
    async fn pass_unanswered(&self, layout: &Layout, node: &CreatedNode) -> Result<(), RequestError> {
        match self.epochs.is_unanswered(node) {
            true => self.begin_epoch(layout).await,
            false => self.check(&[&layout.client(self.session_id())]).await.map(drop),
        }
    }

    /// Deletes a node in this epoch; returns whether it is gone, or else that the epoch is another one.
    async fn delete_in_epoch(&self, layout: &Layout, epoch: i32, path: &str) -> Result<bool, RequestError> {
        let (client, sent) = (self.client()?, self.liveness.now());
        let mut writes = client.new_multi_writer();
        writes.add_check_version(&layout.client(self.session_id()), epoch)?;
        writes.add_delete(path, None)?;
        let committed = writes.commit();
        self.through_leader(sent, async { is_deleted(committed.await) }).await
    }

    /// Begins the next epoch of the session.
    async fn begin_epoch(&self, layout: &Layout) -> Result<(), RequestError> {
        let (node, last) = (layout.client(self.session_id()), self.epochs.lock().current);
        loop {
            let (client, sent) = (self.client()?, self.liveness.now());
            let written = client.set_data(&node, b"", None);
            match self.through_leader(sent, written).await {
                Ok(stat) if stat.version > last => {
                    let mut epochs = self.epochs.lock();
                    epochs.current = epochs.current.max(stat.version);
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.effect == Effect::Missing => create_client_node(self, layout).await?,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns whether the node of a deletion in an epoch is gone; false if the epoch is another one.
fn is_deleted<T>(answer: Result<T, MultiWriteError>) -> Result<bool, ClientError> {
    match failed_operation(answer)? {
        None => Ok(true),
        Some((0, ClientError::BadVersion | ClientError::NoNode)) => Ok(false),
        Some((_, ClientError::NoNode)) => Ok(true),
        Some((_, error)) => Err(error),
    }
}
