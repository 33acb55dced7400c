//! A heartbeat: a request through the leader proves the session alive, and reads behind it find each hold in place.
//!
//! 1. A transaction checks the client's own node. It goes through leader and quorum, and each of their servers logs some
//!    110 bytes, whatever is held. Its answer is what the [`Proof`](crate::proof) counts.
//! 2. After that answer, [reads by name](crate::presence) look for the nodes of all holds, at the session's server alone.
//!
//! What the reads prove: a server answers the check when it has applied it, and with it everything that was committed
//! before. A later read of the session is at least as new, also at another server, which refuses a session that has seen
//! more than itself. So a node that was deleted before the check was proposed is not shown: a transaction with a check for
//! each hold would prove the same. What is deleted after the check may still be shown, until the next heartbeat.
//!
//! What they do not prove is that the session lives: a follower that has lost its leader answers reads. A hold that is
//! shown is believed exactly as long as the session's proof allows, and no read makes that longer.
//!
//! Failure cases:
//!
//! * The answer is late: the heartbeat reports [`Renewal::Unknown`], its requests go on, and what they find counts from
//!   when they were sent. The next heartbeat that ends reports it. Where every answer is late, each heartbeat reports what
//!   an earlier one has found.
//! * The server is silent: [`UNANSWERED_MAX`] requests wait for it at most.
//! * No connection: nothing is sent before there is one, or a queue of old requests would go out with it.
//! * A node is gone: it is missing in an answer that shows the others.
//! * The client's own node is gone, by an operator: the answer is as good, and the node is created again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockkit_core::backend::{Beat, ClaimId, Grant, Renewal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    call::{Server, bounded},
    error::{Effect, Fault},
    keys::Layout,
    presence::Sought,
    session::ZkSession,
};

/// Beats per ttl. A lifetime counts from a beat that was answered half a tick before the last one (a quarter of a ttl, where
/// the tick is not known); so many keep it above half a ttl in quiet times.
pub(crate) const BEATS_PER_TTL: u32 = 10;

/// The part of a ttl after which a heartbeat reports: less than the time to the next.
const REPORTS_PER_TTL: u32 = 12;

/// Heartbeats of one session that wait for an answer. There is one per tenth of a ttl or more, and after a ttl without an
/// answer the session is over.
const UNANSWERED_MAX: usize = 10;

/// A hold, and its node.
type Asked = (ClaimId, Sought);

/// The heartbeats of a session that are under way, and what they have found since one reported.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    found: Arc<Mutex<Found>>,
    unanswered: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Found {
    /// A request through the leader was answered.
    is_alive: bool,
    /// Whether the nodes of these holds are there.
    holds: HashMap<ClaimId, bool>,
}

impl Found {
    fn note(&mut self, ids: impl IntoIterator<Item = ClaimId>, there: impl IntoIterator<Item = bool>) {
        for (id, is_there) in ids.into_iter().zip(there) {
            // Two heartbeats may come here in any order: what was missing once stays missing.
            *self.holds.entry(id).or_insert(true) &= is_there;
        }
    }
}

impl Default for Heartbeats {
    fn default() -> Self {
        Self { found: Arc::default(), unanswered: Arc::new(Semaphore::new(UNANSWERED_MAX)) }
    }
}

impl ZkSession {
    pub(crate) async fn beat(&self, held: &[Grant]) -> Beat {
        let nodes: HashMap<ClaimId, Sought> = held
            .iter()
            .filter_map(|grant| Some((grant.claim(), self.claims.get(grant.claim())?.own)))
            .map(|(id, own)| (id, Sought::exactly(&own, self.layout.form)))
            .collect();
        let window = self.request_timeout.min(self.ttl / REPORTS_PER_TTL);
        let asked = nodes.iter().map(|(id, node)| (*id, node.clone())).collect();
        let outcome = bounded(window, self.send(window, asked)).await;
        let found = std::mem::take(&mut *lock(&self.heartbeats.found));
        let fault = outcome.err().unwrap_or_else(Fault::no_reply);
        let (armed_at, is_over) = (self.server.proof.armed_at(), self.server.life.is_over());
        let unknown = || Renewal::Unknown(fault.clone().into_error("renew"));
        let session = match found.is_alive {
            _ if is_over => Renewal::Gone,
            true => Renewal::Renewed { armed_at },
            false => unknown(),
        };
        let hold = |grant: &Grant| match found.holds.get(&grant.claim()) {
            _ if is_over || !nodes.contains_key(&grant.claim()) => Renewal::Gone,
            Some(true) => Renewal::Renewed { armed_at },
            Some(false) => Renewal::Gone,
            None => unknown(),
        };
        Beat::new(session, held.iter().map(|grant| (grant.claim(), hold(grant))).collect())
    }

    /// Sends a heartbeat, which goes on when the future is dropped, and waits for its end.
    async fn send(&self, window: Duration, asked: Vec<Asked>) -> Result<(), Fault> {
        self.server.connected(window).await?;
        let Ok(permit) = Arc::clone(&self.heartbeats.unanswered).acquire_owned().await else {
            return Err(Fault::session_over());
        };
        let heartbeat = Heartbeat {
            server: Arc::clone(&self.server),
            layout: self.layout.clone(),
            found: Arc::clone(&self.heartbeats.found),
            _permit: permit,
        };
        tokio::spawn(heartbeat.run(asked)).await.unwrap_or_else(|_| Err(Fault::no_reply()))
    }
}

/// One heartbeat on its way.
struct Heartbeat {
    server: Arc<Server>,
    layout: Layout,
    found: Arc<Mutex<Found>>,
    _permit: OwnedSemaphorePermit,
}

impl Heartbeat {
    async fn run(self, asked: Vec<Asked>) -> Result<(), Fault> {
        let is_missing = self.server.check(&[&self.layout.client(self.server.session())]).await?.is_some();
        lock(&self.found).is_alive = true;
        let (ids, nodes): (Vec<ClaimId>, Vec<Sought>) = asked.into_iter().unzip();
        let there = self.server.are_there(&nodes).await?;
        lock(&self.found).note(ids, there);
        match is_missing {
            true => make_own_node(&self.server, &self.layout).await,
            false => Ok(()),
        }
    }
}

/// Creates the client's own node, and the directories above it.
pub(crate) async fn make_own_node(server: &Server, layout: &Layout) -> Result<(), Fault> {
    let node = layout.client(server.session());
    for is_last in [false, true] {
        match server.create(&node, "", false).await {
            Err(fault) if fault.effect == Effect::Missing && !is_last => {
                server.make_directory(&layout.clients()).await?;
            }
            Err(fault) if fault.effect != Effect::Exists => return Err(fault),
            _ => break,
        }
    }
    Ok(())
}

fn lock(found: &Mutex<Found>) -> MutexGuard<'_, Found> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_that_one_of_two_heartbeats_has_missed_is_gone() {
        for answers in [[[true, false], [true, true]], [[true, true], [true, false]]] {
            let (mut found, ids) = (Found::default(), [ClaimId::random(), ClaimId::random()]);
            answers.into_iter().for_each(|there| found.note(ids, there));
            assert_eq!((found.holds[&ids[0]], found.holds[&ids[1]]), (true, false));
        }
    }
}
