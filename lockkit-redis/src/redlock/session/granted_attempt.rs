//! An attempt that a majority granted: its release, and what its holder writes.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use lockkit_core::{BootInstant, FencingToken, support::lock};

use super::{
    attempt::SessionContext,
    release::{Removal, RetryPolicy},
    sent_requests::SentRequests,
};
use crate::redlock::wire::Attempt;

/// An attempt that a majority granted. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct WonAttempt {
    pub(super) attempt: Attempt,
    pub(super) token: FencingToken,
    pub(super) armed_at: BootInstant,
    sent: Arc<SentRequests>,
    holder: Arc<HolderState>,
}

/// What the holder of a lock has written.
#[derive(Debug)]
struct HolderState {
    /// Its metadata as JSON, as it last proclaimed them.
    metadata: Mutex<Arc<str>>,
    /// How many records.
    writes: AtomicU64,
}

impl WonAttempt {
    /// `metadata`: as JSON, as the attempt has sent them.
    pub(super) fn new(
        attempt: Attempt,
        token: FencingToken,
        armed_at: BootInstant,
        metadata: &Arc<str>,
        sent: Arc<SentRequests>,
    ) -> Self {
        let holder = HolderState { metadata: Mutex::new(Arc::clone(metadata)), writes: AtomicU64::new(0) };
        Self { attempt, token, armed_at, sent, holder: Arc::new(holder) }
    }

    /// Releases the lock at all nodes.
    pub(super) fn release(&self, context: &SessionContext) -> Removal {
        // First, so that no restore is sent any more.
        self.sent.end();
        let request = context.requests.release(&self.attempt, self.token, self.sent.was_restored());
        Removal::begin(&context.nodes, request, &self.sent, RetryPolicy::Always, context.ttl)
    }

    /// Returns whether a restore may be sent to this node. It may not once the release has begun, which must reach
    /// every node that a restore was sent to, and must know of it. So it is noted first.
    pub(super) fn may_restore_at(&self, node: usize) -> bool {
        self.sent.mark_restored(node);
        !self.sent.has_ended()
    }

    /// Returns the number of the holder's next write, from 1.
    pub(super) fn next_write(&self) -> u64 {
        self.holder.writes.fetch_add(1, SeqCst) + 1
    }

    /// Returns the metadata that a restored lock gets.
    pub(super) fn metadata(&self) -> Arc<str> {
        Arc::clone(&lock(&self.holder.metadata))
    }

    /// Replaces them, before they are sent to the nodes: a restore that is sent later must not bring back what a
    /// majority has replaced.
    pub(super) fn set_metadata(&self, metadata: Arc<str>) {
        *lock(&self.holder.metadata) = metadata;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_core::{Clock, LockName, backend::ClaimId, limits::TTL_MAX};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::redlock::{
        config::RedlockConfig,
        membership::Rejoiner,
        session::release::{RETRIED_CLEAN_UPS_MAX, clean_up_late},
        wire::RequestBuilder,
    };
    use crate::{
        RedisConfig,
        keys::{Layout, Names},
    };

    fn won() -> WonAttempt {
        let keys = Layout::new("", Names::Encoded, false).keys(&LockName::new("x").unwrap()).unwrap();
        let attempt = Attempt { id: ClaimId::random(), keys: Arc::new(keys) };
        WonAttempt::new(attempt, FencingToken::new(7), Clock::boot().now(), &"{}".into(), Arc::default())
    }

    /// A session at addresses where no server listens.
    fn context() -> SessionContext {
        let unreachable = RedisConfig::new(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]).unwrap();
        let nodes = RedlockConfig::new(unreachable).unwrap().connect(Duration::from_secs(1));
        let (clock, closed) = (Clock::boot(), CancellationToken::new());
        SessionContext {
            nodes: nodes.clone(),
            requests: RequestBuilder { ttl_ms: 60_000, keep_ms: 60_000 },
            ttl: Duration::from_secs(60),
            clock: clock.clone(),
            rejoiner: Rejoiner::new(nodes, TTL_MAX, clock, closed),
        }
    }

    /// Its release could not make the node refuse it.
    #[test]
    fn no_restore_is_sent_once_the_release_has_begun() {
        let won = won();
        assert!(!won.sent.was_restored());
        assert!(won.may_restore_at(1) && won.sent.was_restored() && won.sent.is_touched(1));
        won.sent.end();
        assert!(!won.may_restore_at(2));
    }

    /// Tasks of this test's runtime.
    fn alive() -> usize {
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }

    #[tokio::test]
    async fn release_is_retried_however_many_clean_ups_are() {
        let (won, context) = (won(), context());
        for number in 0..context.nodes.count() {
            let node = context.nodes.get(number).unwrap();
            assert_eq!(node.clean_up_retries.forget_permits(usize::MAX), RETRIED_CLEAN_UPS_MAX);
            won.sent.mark_touched(number);
            drop(won.sent.settle_on_drop(number));
        }
        let before = alive();
        won.release(&context).confirmed().await.unwrap_err();
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(alive(), before + 1);
    }

    /// Those of asks that were late are among them: a node that is away would cost a task for each.
    #[tokio::test(start_paused = true)]
    async fn clean_up_of_a_late_ask_is_not_retried_where_many_are() {
        let (won, context) = (won(), context());
        let (node, limit) = (context.nodes.get(0).unwrap(), context.nodes.limit);
        node.clean_up_retries.forget_permits(usize::MAX);
        let clean_up = clean_up_late(&node, limit, won.attempt.clean_up(), context.ttl);
        tokio::time::timeout(2 * limit, clean_up).await.expect("it was sent once");
    }

    /// A node that is away for ever would cost a task for each release.
    #[tokio::test(start_paused = true)]
    async fn release_is_not_retried_once_its_keys_have_expired() {
        let (won, context) = (won(), context());
        for number in 0..context.nodes.count() {
            won.sent.mark_touched(number);
            drop(won.sent.settle_on_drop(number));
        }
        let before = alive();
        won.release(&context).confirmed().await.unwrap_err();
        tokio::time::sleep(2 * context.ttl).await;
        assert_eq!(alive(), before);
    }
}
