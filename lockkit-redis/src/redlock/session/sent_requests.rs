//! What was sent for an attempt, and may have had an effect.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use tokio::sync::Notify;

/// What was sent for an attempt. A set of nodes is a bit for each.
#[derive(Debug, Default)]
pub(super) struct SentRequests {
    /// The attempt is being removed.
    ended: AtomicBool,
    /// Where a key of the attempt may be.
    touched: AtomicU32,
    /// Where a request was refused and had no effect.
    refused: AtomicU32,
    /// Where a restore was sent to.
    restored: AtomicU32,
    /// Where the attempt no longer waits for the reply. The removal is sent only then, so that the node executes it
    /// after the ask.
    settled: AtomicU32,
    settling: Notify,
}

impl SentRequests {
    /// Records that the attempt is being removed.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Records that a key of the attempt may be at the node.
    pub(super) fn mark_touched(&self, node: usize) {
        self.touched.fetch_or(bit(node), SeqCst);
    }

    /// Records that a request had no effect. It matters only if no other request may have had one: an earlier copy
    /// whose connection broke may be executed later.
    pub(super) fn mark_refused(&self, node: usize) {
        self.refused.fetch_or(bit(node), SeqCst);
    }

    /// Records that a restore is sent to the node.
    pub(super) fn mark_restored(&self, node: usize) {
        self.mark_touched(node);
        self.restored.fetch_or(bit(node), SeqCst);
    }

    pub(super) fn is_refused(&self, node: usize) -> bool {
        self.refused.load(SeqCst) & bit(node) != 0
    }

    pub(super) fn is_touched(&self, node: usize) -> bool {
        self.touched.load(SeqCst) & bit(node) != 0
    }

    /// Returns whether a restore was sent to any node.
    pub(super) fn was_restored(&self) -> bool {
        self.restored.load(SeqCst) != 0
    }

    /// The attempt waits for this node's reply until the returned guard is dropped.
    pub(super) fn settle_on_drop(&self, node: usize) -> SettleGuard<'_> {
        SettleGuard { sent: self, node }
    }

    /// Waits until the attempt no longer waits for this node's reply.
    pub(super) async fn settled(&self, node: usize) {
        loop {
            let settling = self.settling.notified();
            if self.settled.load(SeqCst) & bit(node) != 0 {
                return;
            }
            settling.await;
        }
    }
}

/// There are at most nine nodes.
fn bit(node: usize) -> u32 {
    1 << node
}

/// Records on drop that the attempt no longer waits for a node's reply.
pub(super) struct SettleGuard<'a> {
    sent: &'a SentRequests,
    node: usize,
}

impl Drop for SettleGuard<'_> {
    fn drop(&mut self) {
        self.sent.settled.fetch_or(bit(self.node), SeqCst);
        // Nobody waits before.
        if self.sent.has_ended() {
            self.sent.settling.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_conformance::direct::HANG;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn removal_at_a_node_waits_until_its_reply_is_not_waited_for() {
        let sent = SentRequests::default();
        let (one, _other) = (sent.settle_on_drop(0), sent.settle_on_drop(1));
        sent.end();
        let (settled, other) = (sent.settled(0), sent.settled(1));
        tokio::pin!(settled, other);
        assert!(timeout(Duration::ZERO, settled.as_mut()).await.is_err(), "the ask may be executed later");
        assert!(timeout(Duration::ZERO, other.as_mut()).await.is_err());
        drop(one);
        timeout(HANG, settled).await.expect("the removal is woken");
        assert!(timeout(Duration::ZERO, other).await.is_err(), "each node on its own");
    }
}
