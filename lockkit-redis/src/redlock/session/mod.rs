//! A session with a set of nodes: its holds, and how it closes.
//!
//! The nodes know no sessions: every lock has its own lifetime at each node. [`acquire`] retries
//! attempts, [`attempt`] is one attempt, [`heartbeat`] renews holds, and
//! [`membership`](super::membership) handles nodes that have lost their data.
//!
//! * The session is closed: every acquire under way removes its keys, and all holds are released. What no majority
//!   confirms expires.
//! * Nodes exchange their addresses: the session ends, and its holds with it.
//! * An operator breaks a hold: every node where it ends publishes that. The first message ends the hold here; without a
//!   message, a heartbeat finds that no majority has it.
//! * A release is not answered: it is retried, node by node.
//! * A release is not answered before its keys must have expired everywhere: the hold is forgotten. A caller that
//!   waited for the answer has got an error.

mod acquire;
mod attempt;
mod granted_attempt;
mod heartbeat;
mod powers;
mod release;
mod sent_requests;
mod votes;

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{Acquired, Claim, ClaimId, Elections, Grant, Loss, Records, Renewals, Session},
    support::lock,
};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

pub(super) use self::{
    attempt::{LATE_ASKS_MAX, SessionContext},
    release::RETRIED_CLEAN_UPS_MAX,
};
use self::{granted_attempt::WonAttempt, release::Removal};
use crate::{error::RequestError, keys::Layout};

/// Limit of concurrent acquires, far more than a client may have.
const ACQUIRES_MAX: u32 = 1 << 20;

/// A session.
#[derive(Debug)]
pub(super) struct RedlockSession {
    context: SessionContext,
    layout: Layout,
    closed: CancellationToken,
    holds: Mutex<HashMap<ClaimId, Hold>>,
    /// One permit for each acquire under way.
    acquiring: Semaphore,
    /// The attempts of any client whose holds operators have broken.
    broken: AsyncMutex<mpsc::Receiver<ClaimId>>,
}

/// A granted lock.
#[derive(Clone, Debug)]
struct Hold {
    won: WonAttempt,
    /// Set once the release has begun.
    removal: Option<Removal>,
}

impl RedlockSession {
    pub(super) fn new(
        context: SessionContext,
        layout: Layout,
        closed: CancellationToken,
        broken: mpsc::Receiver<ClaimId>,
    ) -> Self {
        let acquiring = Semaphore::new(ACQUIRES_MAX as usize);
        Self { context, layout, closed, holds: Mutex::default(), acquiring, broken: AsyncMutex::new(broken) }
    }

    /// Waits until a hold of this session was broken. It is removed at the nodes that still have it, as it may have been
    /// broken at some only. Cancel safe: a message is received only right before this returns.
    async fn broken_hold(&self) -> ClaimId {
        let mut broken = self.broken.lock().await;
        loop {
            let Some(attempt) = broken.recv().await else { return std::future::pending().await };
            let holds_it = |(_, hold): &(&ClaimId, &Hold)| hold.won.attempt.id == attempt;
            let claim = self.lock().iter().find(holds_it).map(|(claim, _)| *claim);
            let Some(claim) = claim.filter(|claim| self.active_hold(*claim).is_some()) else { continue };
            let _ = self.begin_release(claim);
            return claim;
        }
    }

    /// Adds a hold.
    fn add_hold(&self, claim: ClaimId, won: WonAttempt) {
        self.lock().insert(claim, Hold { won, removal: None });
    }

    /// Returns the hold of this claim, unless its release has begun.
    fn active_hold(&self, claim: ClaimId) -> Option<WonAttempt> {
        self.lock().get(&claim).filter(|hold| hold.removal.is_none()).map(|hold| hold.won.clone())
    }

    /// Starts the release of a hold, or returns the one under way.
    fn begin_release(&self, claim: ClaimId) -> Option<Removal> {
        let mut holds = self.lock();
        let hold = holds.get_mut(&claim)?;
        Some(hold.removal.get_or_insert_with(|| hold.won.release(&self.context)).clone())
    }

    async fn release_claim(&self, claim: ClaimId) -> Result<(), RequestError> {
        let Some(removal) = self.begin_release(claim) else { return Ok(()) };
        removal.confirmed().await?;
        self.lock().remove(&claim);
        Ok(())
    }

    /// Forgets holds whose keys must have expired at all nodes more than `ago` ago, confirmed or not.
    fn forget_expired(&self, ago: Duration) {
        self.lock()
            .retain(|_, hold| !hold.removal.as_ref().is_some_and(|removal| removal.is_expired_since(ago)));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Hold>> {
        lock(&self.holds)
    }
}

#[async_trait]
impl Session for RedlockSession {
    fn ttl(&self) -> Duration {
        self.context.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        let _under_way = self.acquiring.acquire().await;
        self.acquire_claim(&claim).await
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        self.heartbeat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "release").with_lock(grant.name()));
        }
        let released = self.release_claim(grant.claim()).await;
        released.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Loss::Session,
            () = self.context.nodes.members.exchanged() => Loss::Session,
            // Nodes report nothing else.
            claim = self.broken_hold() => Loss::Grant(claim),
        }
    }

    fn elections(&self) -> Option<&dyn Elections> {
        Some(self)
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        // All permits are back once every acquire has ended.
        let _settled = self.acquiring.acquire_many(ACQUIRES_MAX).await;
        self.forget_expired(Duration::ZERO);
        let claims: Vec<ClaimId> = self.lock().keys().copied().collect();
        let releases = claims.into_iter().map(|claim| self.release_claim(claim));
        let unconfirmed = futures_util::future::join_all(releases).await.into_iter().find_map(Result::err);
        unconfirmed.map_or(Ok(()), |fault| Err(fault.into_error("close")))
    }
}

/// A session that is dropped without a close: its holds expire, and its waiting claims end.
impl Drop for RedlockSession {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use futures_util::FutureExt;
    use lockkit_conformance::direct::{HANG, until};
    use lockkit_core::{
        Clock, FencingToken, LockName, Metadata,
        backend::ClaimControl,
        lease,
        limits::{RELEASE_ANSWER_MAX, RETRY_PAUSE_MIN, TTL_MAX},
    };

    use super::*;
    use crate::redlock::{
        config::RedlockConfig,
        hints::Hints,
        membership::Rejoiner,
        node::name_of,
        session::{heartbeat::LOCKS_PER_REQUEST, sent_requests::SentRequests},
        wire::{Attempt, RequestBuilder},
    };
    use crate::{
        RedisConfig,
        keys::Names,
        tests::scripted::{Answer, ScriptedServer, greeting},
    };

    const TTL: Duration = Duration::from_secs(60);

    /// A session at addresses where no server listens.
    fn session() -> RedlockSession {
        session_at(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], Duration::from_secs(1))
    }

    pub(super) fn session_at(nodes: [&str; 3], limit: Duration) -> RedlockSession {
        let (hints, broken) = Hints::of_session();
        let config = RedlockConfig::new(RedisConfig::new(nodes).unwrap()).unwrap();
        let nodes = config.connect_with(limit, hints);
        let (clock, closed) = (Clock::boot(), CancellationToken::new());
        let context = SessionContext {
            nodes: nodes.clone(),
            requests: RequestBuilder { ttl_ms: 60_000, keep_ms: 60_000 },
            ttl: TTL,
            clock: clock.clone(),
            rejoiner: Rejoiner::new(nodes, TTL_MAX, clock, closed.clone()),
        };
        RedlockSession::new(context, Layout::new("", Names::Encoded, false), closed, broken)
    }

    /// Adds a hold after `done` has recorded, for each node, what was sent there.
    pub(super) fn add_hold(session: &RedlockSession, done: impl Fn(&SentRequests, usize)) -> Grant {
        let sent = Arc::new(SentRequests::default());
        (0..session.context.nodes.count()).for_each(|node| {
            done(&sent, node);
            drop(sent.settle_on_drop(node));
        });
        let name = LockName::new("x").unwrap();
        let keys = Arc::new(session.layout.keys(&name).unwrap());
        let attempt = Attempt { id: ClaimId::random(), keys };
        let claim = Claim::new(name, false, Metadata::of_this_process(None), &ClaimControl::new());
        let (token, now) = (FencingToken::new(7), session.context.clock.now());
        session.add_hold(claim.id(), WonAttempt::new(attempt, token, now, &"{}".into(), sent));
        Grant::new(&claim, token, now)
    }

    /// Tasks of this test's runtime.
    fn tasks() -> usize {
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }

    /// Sooner, a caller that waits for the end of its release would get a false confirmation.
    #[tokio::test(start_paused = true)]
    async fn heartbeat_forgets_an_unconfirmed_release_in_time() {
        let session = session();
        let claim = add_hold(&session, SentRequests::mark_touched).claim();
        assert!(session.release_claim(claim).await.is_err());
        let keys_expired = lease::quarantine(TTL) + Duration::from_millis(1);
        for (later, is_forgotten) in [(keys_expired, false), (RELEASE_ANSWER_MAX, true)] {
            tokio::time::advance(later).await;
            session.heartbeat(&[]).await;
            assert_eq!(session.release_claim(claim).await.is_ok(), is_forgotten, "{later:?} later");
        }
    }

    #[tokio::test]
    async fn hold_is_forgotten_once_its_release_is_confirmed() {
        let session = session();
        // No node has a key of it.
        let claim = add_hold(&session, SentRequests::mark_refused).claim();
        session.release_claim(claim).await.unwrap();
        assert!(session.lock().is_empty());
    }

    /// Its keys would live longer at a node that has not executed the release yet.
    #[tokio::test]
    async fn hold_is_not_renewed_once_its_release_has_begun() {
        let session = session();
        let [released, held] = [(); 2].map(|()| add_hold(&session, SentRequests::mark_touched));
        assert!(session.begin_release(released.claim()).is_some());
        let renewed = session.heartbeat(&[released, held.clone()]).await.holds;
        assert_eq!(renewed.iter().map(|(claim, _)| *claim).collect::<Vec<_>>(), [held.claim()]);
    }

    /// They are renewed in several requests.
    #[tokio::test]
    async fn heartbeat_answers_for_every_hold() {
        const HOLDS: usize = 2 * LOCKS_PER_REQUEST + 1;
        let session = session();
        let held: Vec<Grant> = (0..HOLDS).map(|_| add_hold(&session, SentRequests::mark_touched)).collect();
        let renewed = session.heartbeat(&held).await.holds;
        assert_eq!(renewed.len(), HOLDS);
        assert!(renewed.iter().map(|(claim, _)| *claim).eq(held.iter().map(Grant::claim)));
    }

    /// A session of a node that is silent, and two that are down. Returns also how many requests the first one got.
    async fn session_at_a_silent_node() -> (RedlockSession, Arc<AtomicUsize>) {
        let asked = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&asked);
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| match &*words[0] {
                "EVALSHA" => {
                    count.fetch_add(1, SeqCst);
                    Answer::Nothing
                }
                _ => greeting(words),
            }
        });
        let silent = name_of(&server.await.address);
        (session_at([&*silent, "127.0.0.1:2", "127.0.0.1:3"], HANG), asked)
    }

    /// One after the other, they would take longer than the ttl while nodes are silent.
    #[tokio::test]
    async fn requests_of_a_heartbeat_do_not_wait_for_each_other() {
        let (session, asked) = session_at_a_silent_node().await;
        let holds = 2 * LOCKS_PER_REQUEST + 1;
        let held: Vec<Grant> = (0..holds).map(|_| add_hold(&session, SentRequests::mark_touched)).collect();
        tokio::select! {
            _ = session.heartbeat(&held) => panic!("a node has not answered"),
            () = until("all were sent", async || asked.load(SeqCst) == 3) => {}
        }
    }

    #[tokio::test]
    async fn releases_of_a_close_do_not_wait_for_each_other() {
        let (session, asked) = session_at_a_silent_node().await;
        (0..3).for_each(|_| drop(add_hold(&session, SentRequests::mark_touched)));
        tokio::select! {
            _ = session.close() => panic!("a node has not answered"),
            () = until("all were sent", async || asked.load(SeqCst) == 3) => {}
        }
    }

    /// Each request that finds the node would start another one.
    #[tokio::test]
    async fn emptied_node_is_brought_back_by_one_task() {
        let session = session();
        let before = tasks();
        (0..50).for_each(|_| session.context.rejoiner.start_rejoin(0));
        assert_eq!(tasks(), before + 1);
    }

    /// It would keep the connections of the session while the node stays out.
    #[tokio::test(start_paused = true)]
    async fn close_ends_the_task_that_brings_a_node_back() {
        let session = session();
        let before = tasks();
        session.context.rejoiner.start_rejoin(0);
        tokio::time::sleep(RETRY_PAUSE_MIN).await;
        session.close().await.unwrap();
        // Requests that were sent have ended then. Without the other nodes, it would wait for longer.
        tokio::time::sleep(session.context.nodes.limit).await;
        assert_eq!(tasks(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_session_ends_the_task_that_brings_a_node_back() {
        let session = session();
        let (before, limit) = (tasks(), session.context.nodes.limit);
        session.context.rejoiner.start_rejoin(0);
        tokio::time::sleep(RETRY_PAUSE_MIN).await;
        drop(session);
        // Without the other nodes, it would wait for longer.
        tokio::time::sleep(limit).await;
        assert!(tasks() <= before, "{} instead of {before}", tasks());
    }

    /// A restore that is sent before the answer must not bring the former proposal back.
    #[tokio::test]
    async fn restored_lock_gets_the_proposal_that_is_under_way() {
        let session = session();
        let grant = add_hold(&session, SentRequests::mark_touched);
        let metadata = Metadata::of_this_process(None);
        let mut proclaiming = session.elections().unwrap().proclaim(&grant, &metadata);
        assert!(proclaiming.as_mut().now_or_never().is_none(), "no node has answered");
        let noted = session.active_hold(grant.claim()).unwrap().metadata();
        assert_eq!(&*noted, metadata.to_json());
    }
}
