//! Heartbeats: they renew holds and extend waits.
//!
//! * A reply is lost: the holds of that request are unknown; the others are not affected.
//! * A lock has expired, was deleted, or has another value: that hold is gone. It is never restored.
//! * Fewer replicas than required acknowledge a renewal: the hold is kept, but only until its deadline.
//! * The main connection leads to a demoted master while replicas acknowledge renewals over another one: it is asked for
//!   the role.
//! * The session has waiting claims: requests of their own extend their waits. A claim that no longer waits at the
//!   server is woken and re-checks. When nobody holds the lock, one of its waiters re-checks. When this heartbeat is
//!   not answered, each waiter re-checks in time ([`acquire`](super::acquire)).

use std::{collections::HashMap, time::Duration};

use lockkit_core::{
    BootInstant, ErrorKind,
    backend::{Grant, Renewal, Renewals},
    limits::RELEASE_ANSWER_MAX,
};
use redis::{Value, cluster_routing::Slot};
use tokio::time::Instant;
use tracing::debug;

use super::{RedisSession, registry::ClaimEntry, waiting::WaitExtension};
use crate::{
    error::{Effect, RequestError},
    wire::{HeldLock, lifetime_ms, parse_renewals, parse_waiters},
};

/// Locks in one request.
const LOCKS_PER_REQUEST: usize = 500;

/// How many times the lifetime of a leader's metadata is extended within the time for which they are stored.
const LINGER_SHARE: u32 = 4;

/// A heartbeat may take ttl / 4: it must end before the next one, ttl / 3 later.
const HEARTBEAT_WINDOW_SHARE: u32 = 4;

impl RedisSession {
    pub(crate) async fn heartbeat(&self, held: &[Grant]) -> Renewals {
        // A caller that waits for the end of a release asks again within this time. Until then the hold is kept: the
        // release of a forgotten hold would succeed without a confirmation.
        self.forget_ended(RELEASE_ANSWER_MAX);
        let describe = self.extend_metadata(held);
        let held: Vec<HeldLock> = held.iter().filter_map(|grant| self.held_lock(grant)).collect();
        let batches = self.batches(held, |held| &held.lock);
        let (armed_at, window) = (self.clock.now(), self.heartbeat_window());
        let (renewed, alive, (), ()) = tokio::join!(
            futures_util::future::join_all(batches.iter().map(|batch| self.renew_batch(batch, window))),
            self.check_if_idle(batches.is_empty()),
            self.extend_waiters(),
            describe,
        );
        let mut holds = Vec::new();
        let mut session_answer = alive.map(|()| armed_at);
        for (batch, answers) in batches.iter().zip(renewed) {
            for (held, answer) in batch.iter().zip(answers) {
                match &answer {
                    Ok(_) => session_answer = Ok(armed_at),
                    Err(fault) if session_answer.is_err() => session_answer = Err(fault.clone()),
                    Err(_) => {}
                }
                holds.push((held.claim, hold_renewal(answer, armed_at)));
            }
        }
        let session = match session_answer {
            Ok(armed_at) => Renewal::Renewed { armed_at },
            Err(fault) => unknown(&fault),
        };
        Renewals::new(session, holds)
    }

    fn held_lock(&self, grant: &Grant) -> Option<HeldLock> {
        let entry = self.claims.get(grant.claim());
        if entry.is_none() {
            debug!(claim = ?grant.claim(), "a heartbeat names a hold that was released");
        }
        entry.map(|entry| {
            entry.renew();
            // Never less than a pin, also where a failover has lost it.
            let lifetime = entry.pin_left(self.clock.now()).max(self.ttl);
            held_lock(&entry, grant, lifetime)
        })
    }

    /// Returns one answer for each hold, within this time.
    pub(crate) async fn renew_batch(
        &self,
        batch: &[HeldLock],
        window: Duration,
    ) -> Vec<Result<bool, RequestError>> {
        let answer_by = Instant::now() + window;
        match self.renew_together(batch, answer_by, false).await {
            Ok(answers) => answers,
            Err(fault) if matches!(fault.effect, Effect::Split | Effect::Elsewhere) => {
                let single = batch.iter().map(|held| self.renew_moving(held, answer_by));
                futures_util::future::join_all(single).await
            }
            Err(fault) => vec![Err(fault); batch.len()],
        }
    }

    /// Renews one hold in a slot that is moving to another node of a cluster. A request for several keys would fail as
    /// a whole when one of them is at the other node.
    async fn renew_moving(&self, held: &HeldLock, answer_by: Instant) -> Result<bool, RequestError> {
        let answers = self.renew_together(std::slice::from_ref(held), answer_by, true).await?;
        match answers.into_iter().next() {
            // While the client crate has no connection to the slot's owner, it asks any node. The importing node would
            // answer 0 for a key that it does not have yet, so "not held" is no proof of a loss here.
            Some(Ok(false)) | None => {
                let message = "not at the node that its slot is moving to";
                Err(RequestError::new(Effect::Split, ErrorKind::Unavailable, message))
            }
            Some(answer) => answer,
        }
    }

    async fn renew_together(
        &self,
        batch: &[HeldLock],
        answer_by: Instant,
        asking: bool,
    ) -> Result<Vec<Result<bool, RequestError>>, RequestError> {
        let left = answer_by.saturating_duration_since(Instant::now());
        let renew = self.params.renew(batch);
        if let Some(replicas) = &self.replicas {
            return replicas.renew(left, &renew, batch.len(), asking).await;
        }
        let answers = self.server.run_with(left, &renew, None, asking).await?;
        let held = parse_renewals(answers.into_iter().next().unwrap_or(Value::Nil), batch.len())?;
        Ok(held.into_iter().map(Ok).collect())
    }

    /// Checks the server when no hold is renewed, so that the session still gets an answer. Where renewals have a
    /// connection of their own, also checks the other one, which may lead to a demoted master: that serves reads.
    async fn check_if_idle(&self, is_idle: bool) -> Result<(), RequestError> {
        if is_idle {
            self.server.check_serves(self.heartbeat_window()).await
        } else {
            if self.replicas.is_some()
                && let Err(fault) = self.server.check_serves(self.heartbeat_window()).await
            {
                debug!(?fault, "the connection that renews nothing does not serve");
            }
            Err(RequestError::no_reply())
        }
    }

    /// Extends the lifetime of the metadata of leaders, which are stored with the token counter. Renewals name only the
    /// locks.
    async fn extend_metadata(&self, held: &[Grant]) {
        let (now, age) = (self.clock.now(), Duration::from_millis(self.params.linger_ms) / LINGER_SHARE);
        let entries = held.iter().filter_map(|grant| self.claims.get(grant.claim()));
        let old: Vec<_> = entries.filter(|entry| entry.is_metadata_older(age, now)).collect();
        let confirms = old.iter().map(|entry| async move {
            let confirm = self.params.confirm(entry);
            if let Err(fault) = self.server.run_within(self.heartbeat_window(), &confirm).await {
                debug!(
                    ?fault,
                    "the metadata of a leader were not extended; a later heartbeat tries again before they expire"
                );
            }
        });
        futures_util::future::join_all(confirms).await;
    }

    async fn extend_waiters(&self) {
        let queued = self.claims.queued_claims();
        let listens = self.check_channel_server(self.layout.on_cluster() && !queued.is_empty());
        let batches = self.batches(queued, |entry| entry.keys.lock());
        let heartbeats = batches.iter().map(|batch| async move {
            let waiting: Vec<_> = batch.iter().map(|entry| (entry.id, entry.keys.clone())).collect();
            let sent = self.sending();
            let answer =
                self.server.run_within(self.heartbeat_window(), &self.params.heartbeat(&waiting)).await;
            match answer.and_then(|answer| parse_waiters(answer, batch.len())) {
                Ok(waits) => {
                    for (entry, wait) in batch.iter().zip(waits) {
                        match wait {
                            Some(wait) => entry.extend(WaitExtension::queued(sent, wait)),
                            None => entry.wake(),
                        }
                    }
                }
                Err(fault) => debug!(?fault, "the heartbeat of waiting claims was not answered"),
            }
        });
        tokio::join!(futures_util::future::join_all(heartbeats), listens);
    }

    /// Pings the node that publishes to this client. On a cluster, no other request need go to it.
    async fn check_channel_server(&self, is_needed: bool) {
        if is_needed && let Err(fault) = self.server.ping_channel(self.heartbeat_window()).await {
            debug!(?fault, "the node that publishes to this client did not answer");
        }
    }

    /// Splits items into requests: as many as fit, and on a cluster only those of the same slot.
    fn batches<T>(&self, all: Vec<T>, lock: impl Fn(&T) -> &str) -> Vec<Vec<T>> {
        let mut by_slot: HashMap<Option<Slot>, Vec<Vec<T>>> = HashMap::new();
        for item in all {
            let slot = self.layout.on_cluster().then(|| Slot::for_key(lock(&item)));
            let batches = by_slot.entry(slot).or_default();
            match batches.last_mut() {
                Some(batch) if batch.len() < LOCKS_PER_REQUEST => batch.push(item),
                _ => batches.push(vec![item]),
            }
        }
        by_slot.into_values().flatten().collect()
    }

    fn heartbeat_window(&self) -> Duration {
        self.server.request_timeout().min(self.ttl / HEARTBEAT_WINDOW_SHARE)
    }
}

/// Returns the lock that a grant holds, which must live for `lifetime` from now on.
pub(crate) fn held_lock(entry: &ClaimEntry, grant: &Grant, lifetime: Duration) -> HeldLock {
    let (lock, lifetime_ms) = (entry.keys.lock().to_owned(), lifetime_ms(lifetime));
    HeldLock { lock, claim: grant.claim(), token: grant.token(), lifetime_ms }
}

/// Returns a heartbeat without an answer: every hold is unknown.
pub(crate) fn unknown_renewals(held: &[Grant], fault: &RequestError) -> Renewals {
    let holds = held.iter().map(|grant| (grant.claim(), unknown(fault))).collect();
    Renewals::new(unknown(fault), holds)
}

fn hold_renewal(answer: Result<bool, RequestError>, armed_at: BootInstant) -> Renewal {
    match answer {
        Ok(true) => Renewal::Renewed { armed_at },
        Ok(false) => Renewal::Gone,
        Err(fault) => unknown(&fault),
    }
}

fn unknown(fault: &RequestError) -> Renewal {
    Renewal::Unknown(fault.clone().into_error("renew"))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    };

    use lockkit_conformance::direct::{HANG, LONG, acquire, bounded, fresh_name, name};
    use lockkit_core::{Clock, backend::Backend};

    use super::*;
    use crate::{
        RedisBackend, RedisConfig,
        tests::scripted::{Answer, FakeCluster, ScriptedServer, greeting},
        wire::RENEW,
    };

    /// As at the end of the move of a slot. The client crate follows a few redirections, and gives up.
    #[tokio::test]
    async fn hold_whose_requests_are_redirected_in_vain_is_renewed_by_asking() {
        // The node that the slot moves to may have executed no such script yet.
        for has_script in [true, false] {
            renewed_by_asking(has_script).await;
        }
    }

    async fn renewed_by_asking(has_script: bool) {
        let server = ScriptedServer::start(|port| {
            let is_asking = AtomicBool::default();
            move |_, words: &[String]| {
                let is_renewal = words.get(1).is_some_and(|script| script == RENEW.digest());
                Answer::Text(match words[0].to_ascii_uppercase().as_str() {
                    "CLUSTER" => {
                        format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\na\r\n")
                    }
                    "ASKING" => {
                        is_asking.store(true, SeqCst);
                        "+OK\r\n".to_owned()
                    }
                    "EVALSHA" if !is_renewal => ":7\r\n".to_owned(),
                    "EVALSHA" | "EVAL" if !is_asking.swap(false, SeqCst) => {
                        format!("-MOVED 1 127.0.0.1:{port}\r\n")
                    }
                    "EVALSHA" if !has_script => "-NOSCRIPT No matching script.\r\n".to_owned(),
                    "EVALSHA" | "EVAL" => "*1\r\n:1\r\n".to_owned(),
                    _ => return greeting(words),
                })
            }
        });
        let config = RedisConfig::cluster([server.await.address.to_string()]).unwrap().request_timeout(HANG);
        let session = RedisBackend::new(config).open_session(LONG, Clock::boot()).await.unwrap();
        let held = acquire(&session, &fresh_name()).await;
        let heartbeat = bounded(session.renew(std::slice::from_ref(&held))).await;
        assert!(matches!(heartbeat.holds[..], [(_, Renewal::Renewed { .. })]), "{heartbeat:?}");
    }

    /// As while one master of a cluster is busy.
    #[tokio::test]
    async fn session_is_renewed_when_some_of_its_requests_are_answered() {
        let cluster = FakeCluster::answering(|words| {
            let is_renewal = words[1] == RENEW.digest();
            Answer::Text(match &*words[3] {
                _ if !is_renewal => ":7\r\n".to_owned(),
                "a" => "*1\r\n:1\r\n".to_owned(),
                _ => "-OOM command not allowed when used memory > 'maxmemory'.\r\n".to_owned(),
            })
        });
        let node = cluster.await.server.address.to_string();
        let config = RedisConfig::cluster([node]).unwrap().request_timeout(HANG);
        let session = RedisBackend::new(config).open_session(LONG, Clock::boot()).await.unwrap();
        let held = [acquire(&session, &name("a")).await, acquire(&session, &name("b")).await];
        // Which of the two slots comes first is random.
        for _ in 0..30 {
            let heartbeat = bounded(session.renew(&held)).await;
            assert!(matches!(heartbeat.session, Renewal::Renewed { .. }), "{heartbeat:?}");
            let renewed =
                heartbeat.holds.iter().filter(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. }));
            assert_eq!(renewed.count(), 1, "{heartbeat:?}");
        }
    }

    /// The client logs this reason, and no other one.
    #[tokio::test]
    async fn session_that_is_not_renewed_says_what_the_server_has_said() {
        let server = ScriptedServer::start(|_| {
            |_, words: &[String]| {
                let is_renewal = words.get(1).is_some_and(|script| script == RENEW.digest());
                let answer = match &*words[0] {
                    "EVALSHA" if is_renewal => "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
                    "EVALSHA" => ":7\r\n",
                    _ => return greeting(words),
                };
                Answer::Text(answer.to_owned())
            }
        });
        let config = RedisConfig::new([server.await.address.to_string()]).unwrap().request_timeout(HANG);
        let session = RedisBackend::new(config).open_session(LONG, Clock::boot()).await.unwrap();
        let held = acquire(&session, &fresh_name()).await;
        let heartbeat = bounded(session.renew(std::slice::from_ref(&held))).await;
        let Renewal::Unknown(error) = &heartbeat.session else { panic!("{heartbeat:?}") };
        assert!(error.to_string().contains("OOM"), "{error}");
    }

    /// While a script runs, the server serves no other client.
    #[tokio::test]
    async fn many_holds_are_renewed_by_several_requests() {
        const HOLDS: usize = 2 * LOCKS_PER_REQUEST + 1;
        let (requests, largest) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counts = (Arc::clone(&requests), Arc::clone(&largest));
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| match &*words[0] {
                "EVALSHA" if words[1] == RENEW.digest() => {
                    let locks: usize = words[2].parse().unwrap();
                    counts.0.fetch_add(1, SeqCst);
                    counts.1.fetch_max(locks, SeqCst);
                    Answer::Text(format!("*{locks}\r\n{}", ":1\r\n".repeat(locks)))
                }
                "EVALSHA" => Answer::Text(":7\r\n".to_owned()),
                _ => greeting(words),
            }
        });
        let config = RedisConfig::new([server.await.address.to_string()]).unwrap().request_timeout(HANG);
        let session = RedisBackend::new(config).open_session(LONG, Clock::boot()).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..HOLDS {
            held.push(acquire(&session, &fresh_name()).await);
        }
        let heartbeat = bounded(session.renew(&held)).await;
        let renewed = heartbeat.holds.iter().filter(|(_, one)| matches!(one, Renewal::Renewed { .. }));
        assert_eq!(renewed.count(), HOLDS);
        assert_eq!((requests.load(SeqCst), largest.load(SeqCst)), (3, LOCKS_PER_REQUEST));
    }

    /// A master that does not answer would else cost the holds at all others.
    #[tokio::test]
    async fn all_masters_are_asked_before_the_first_one_has_answered() {
        let renewals = AtomicUsize::default();
        let cluster = FakeCluster::answering(move |words| match words[1] == RENEW.digest() {
            true if renewals.fetch_add(1, SeqCst) == 0 => Answer::Nothing,
            true => Answer::Text("*1\r\n:1\r\n".repeat(2)),
            false => Answer::Text(":7\r\n".to_owned()),
        });
        let node = cluster.await.server.address.to_string();
        let config = RedisConfig::cluster([node]).unwrap().request_timeout(HANG);
        let session = RedisBackend::new(config).open_session(LONG, Clock::boot()).await.unwrap();
        // In two slots.
        let held = [acquire(&session, &name("a")).await, acquire(&session, &name("b")).await];
        let heartbeat = bounded(session.renew(&held)).await;
        let renewed = heartbeat.holds.iter().filter(|(_, one)| matches!(one, Renewal::Renewed { .. }));
        assert_eq!(renewed.count(), 2, "{heartbeat:?}");
    }
}
