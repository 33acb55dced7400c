//! Deletes nodes whose name may become that of another claim's node.
//!
//! There, a deletion without an answer is a danger: the server may execute it [late](super::late_creates), when the next
//! holder's node has the name. So its transaction checks the version of the client's own node. If it is not answered, the
//! client raises that version before it deletes again: whatever is not executed by then is refused.
//!
//! Failure cases:
//!
//! * The answer to the write that raises the version is lost: the caller repeats its deletion, and that raises it again.
//! * Another call has raised the version meanwhile: this deletion had no effect, and is sent with the new one.
//! * An operator deletes the client's own node: it is created again, and written until its version is above the last. Until
//!   then a deletion with an earlier version may be executed.

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

/// How often a deletion is sent because another call has raised the version meanwhile.
const DELETION_TRIES: u32 = 10;

/// The version of a client's own node, and the deletions whose answer is not known.
#[derive(Debug, Default)]
pub(crate) struct LateDeletions(Mutex<DeletionRecord>);

#[derive(Debug, Default)]
struct DeletionRecord {
    version: i32,
    /// The version that was checked by the deletion of the node that this transaction created.
    unanswered: HashMap<i64, i32>,
}

impl LateDeletions {
    /// Remembers a deletion that is not answered yet; returns the version that it checks.
    fn sent(&self, node: &CreatedNode) -> i32 {
        let mut record = self.lock();
        let version = record.version;
        record.unanswered.insert(node.czxid, version);
        version
    }

    fn answered(&self, node: &CreatedNode) {
        self.lock().unanswered.remove(&node.czxid);
    }

    /// Returns whether a deletion of this node may still be executed: it checks the current version.
    fn is_unanswered(&self, node: &CreatedNode) -> bool {
        let record = self.lock();
        record.unanswered.get(&node.czxid).is_some_and(|version| *version >= record.version)
    }

    fn lock(&self) -> MutexGuard<'_, DeletionRecord> {
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
                self.late_deletions.answered(node);
                return Ok(());
            }
            let version = self.late_deletions.sent(node);
            let is_done = self.delete_at_version(layout, version, &node.path).await?;
            self.late_deletions.answered(node);
            if is_done {
                return Ok(());
            }
            if self.late_deletions.lock().version <= version {
                self.raise_version(layout).await?;
            }
        }
        let what = "other releases of this client came first; try again";
        Err(RequestError::new(Effect::Busy, ErrorKind::Unavailable, what))
    }

    /// Makes sure that an earlier deletion of this node has been executed, and that this server shows it, or that it never
    /// will be.
    async fn pass_unanswered(&self, layout: &Layout, node: &CreatedNode) -> Result<(), RequestError> {
        match self.late_deletions.is_unanswered(node) {
            true => self.raise_version(layout).await,
            false => self.check(&[&layout.client(self.session_id())]).await.map(drop),
        }
    }

    /// Deletes a node if the client's own node has this version; returns whether it is gone, or else that the version is
    /// another one.
    async fn delete_at_version(
        &self,
        layout: &Layout,
        version: i32,
        path: &str,
    ) -> Result<bool, RequestError> {
        let (client, sent) = (self.client()?, self.liveness.now());
        let mut writes = client.new_multi_writer();
        writes.add_check_version(&layout.client(self.session_id()), version)?;
        writes.add_delete(path, None)?;
        let committed = writes.commit();
        self.through_leader(sent, async { is_deleted(committed.await) }).await
    }

    /// Raises the version of the client's own node.
    async fn raise_version(&self, layout: &Layout) -> Result<(), RequestError> {
        let (node, last) = (layout.client(self.session_id()), self.late_deletions.lock().version);
        loop {
            let (client, sent) = (self.client()?, self.liveness.now());
            let written = client.set_data(&node, b"", None);
            match self.through_leader(sent, written).await {
                Ok(stat) if stat.version > last => {
                    let mut record = self.late_deletions.lock();
                    record.version = record.version.max(stat.version);
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.effect == Effect::Missing => create_client_node(self, layout).await?,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns whether the node of a deletion is gone; false if the version of the client's own node is another one.
fn is_deleted<T>(answer: Result<T, MultiWriteError>) -> Result<bool, ClientError> {
    match failed_operation(answer)? {
        None => Ok(true),
        Some((0, ClientError::BadVersion | ClientError::NoNode)) => Ok(false),
        Some((_, ClientError::NoNode)) => Ok(true),
        Some((_, error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkit_conformance::direct::{acquire, fresh_name, release};
    use lockkit_core::backend::Session;
    use lockkit_testbed::Proxy;

    use super::*;
    use crate::{
        Form,
        session::tests::{session_at, shared},
    };

    /// It could be executed later if the version stayed, and its record would stay for as long as the session lives.
    #[tokio::test(flavor = "multi_thread")]
    async fn deletion_without_an_answer_is_made_void_and_forgotten() {
        let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
        let session = session_at(&proxy.endpoint(), Form::Single).await;
        let known = || {
            let record = session.server.late_deletions.lock();
            (record.version, record.unanswered.len())
        };
        let client: Arc<dyn Session> = session.clone();
        let held = acquire(&client, &fresh_name()).await;
        // The replies to the check and to the read come first.
        proxy.swallow_reply(3);
        assert_eq!(client.release(&held).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(known(), (0, 1));
        release(&client, &held).await;
        assert!(matches!(known(), (1.., 0)), "{:?}", known());
    }

    /// A session may release any number of locks.
    #[tokio::test(flavor = "multi_thread")]
    async fn deletion_with_an_answer_is_forgotten() {
        let session = session_at(&shared().endpoint(), Form::Single).await;
        let client: Arc<dyn Session> = session.clone();
        release(&client, &acquire(&client, &fresh_name()).await).await;
        assert!(session.server.late_deletions.lock().unanswered.is_empty());
    }
}
