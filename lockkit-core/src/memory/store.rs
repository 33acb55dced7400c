//! The state of a memory server: a queue per lock and a table of sessions. Pure code; the time is an argument.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    FencingToken, LockName, Metadata,
    backend::{ClaimId, Contender, Inspection},
};

pub(super) type SessionId = u64;

/// The queues and sessions of a server.
#[derive(Debug, Default)]
pub(super) struct Store {
    queues: HashMap<LockName, VecDeque<Entry>>,
    sessions: HashMap<SessionId, Lease>,
    last_session: SessionId,
    last_token: u64,
    renewed_claims: u64,
    muted: bool,
}

/// A claim in a queue; the first one holds the lock and has a token.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) session: SessionId,
    pub(super) claim: ClaimId,
    pub(super) metadata: Metadata,
    pub(super) granted: Arc<Notify>,
    pub(super) token: Option<FencingToken>,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    expires_at: Instant,
    ended: CancellationToken,
}

/// The state of a claim at the store.
#[derive(Debug)]
pub(super) enum ClaimState {
    Holder(FencingToken),
    Waiter,
    /// Another claim holds the lock, and this one is not queued.
    Busy,
    /// The claim has no entry, or its session is over.
    Absent,
}

impl Store {
    pub(super) fn open(&mut self, ttl: Duration, now: Instant) -> (SessionId, CancellationToken) {
        self.last_session += 1;
        let ended = CancellationToken::new();
        let lease = Lease { ttl, expires_at: now + ttl, ended: ended.clone() };
        self.sessions.insert(self.last_session, lease);
        (self.last_session, ended)
    }

    /// Adds a claim to the queue; idempotent by its id. `wait` is false for a try.
    pub(super) fn enqueue(&mut self, name: &LockName, entry: Entry, wait: bool) -> ClaimState {
        if !self.sessions.contains_key(&entry.session) {
            return ClaimState::Absent;
        }
        let claim = entry.claim;
        let queue = self.queues.entry(name.clone()).or_default();
        if !queue.iter().any(|other| other.claim == claim) {
            if !wait && !queue.is_empty() {
                return ClaimState::Busy;
            }
            queue.push_back(entry);
            self.grant_first(name);
        }
        self.claim_state(name, claim)
    }

    pub(super) fn claim_state(&self, name: &LockName, claim: ClaimId) -> ClaimState {
        let entry = self.queues.get(name).and_then(|queue| queue.iter().find(|entry| entry.claim == claim));
        match entry {
            None => ClaimState::Absent,
            Some(Entry { token: Some(token), .. }) => ClaimState::Holder(*token),
            Some(Entry { token: None, .. }) => ClaimState::Waiter,
        }
    }

    pub(super) fn remove(&mut self, name: &LockName, claim: ClaimId) {
        self.retain(name, |entry| entry.claim != claim);
    }

    /// Restarts the lifetime of a session, and returns which of these claims still hold their lock; `None` if the
    /// session is over.
    pub(super) fn renew(
        &mut self,
        session: SessionId,
        held: &[(LockName, ClaimId)],
        now: Instant,
    ) -> Option<Vec<bool>> {
        let lease = self.sessions.get_mut(&session)?;
        lease.expires_at = now + lease.ttl;
        self.renewed_claims += held.len() as u64;
        Some(
            held.iter()
                .map(|(name, claim)| matches!(self.claim_state(name, *claim), ClaimState::Holder(_)))
                .collect(),
        )
    }

    pub(super) fn renewed_claims(&self) -> u64 {
        self.renewed_claims
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Ends a session and removes its claims.
    pub(super) fn end(&mut self, session: SessionId) {
        let Some(lease) = self.sessions.remove(&session) else { return };
        if !self.muted {
            lease.ended.cancel();
        }
        let names: Vec<LockName> = self.queues.keys().cloned().collect();
        for name in names {
            self.retain(&name, |entry| entry.session != session);
        }
    }

    /// Ends the sessions whose lifetime has passed.
    pub(super) fn sweep(&mut self, now: Instant) {
        let expired: Vec<SessionId> =
            self.sessions.iter().filter(|(_, lease)| lease.expires_at <= now).map(|(id, _)| *id).collect();
        for session in expired {
            self.end(session);
        }
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.sessions.values().map(|lease| lease.expires_at).min()
    }

    /// Returns when the session of the holder of this lock expires.
    pub(super) fn expiry_of_holder(&self, name: &LockName) -> Option<Instant> {
        let session = self.queues.get(name)?.front()?.session;
        Some(self.sessions.get(&session)?.expires_at)
    }

    pub(super) fn expire_holder(&mut self, name: &LockName) -> bool {
        self.expire_at(name, 0)
    }

    pub(super) fn expire_waiter(&mut self, name: &LockName) -> bool {
        self.expire_at(name, 1)
    }

    /// Ends the session of the entry at this index of the queue; returns whether there was one.
    fn expire_at(&mut self, name: &LockName, index: usize) -> bool {
        let entry = self.queues.get(name).and_then(|queue| queue.get(index)).map(|entry| entry.session);
        entry.inspect(|session| self.end(*session)).is_some()
    }

    pub(super) fn expire_all(&mut self) {
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.end(session);
        }
    }

    pub(super) fn delete_entries(&mut self, name: &LockName) {
        self.queues.remove(name);
    }

    pub(super) fn mute(&mut self, muted: bool) {
        self.muted = muted;
    }

    pub(super) fn inspect(&self, name: &LockName) -> Inspection {
        let contender = |entry: &Entry| Contender {
            entry: entry.claim.to_string(),
            token: entry.token,
            metadata: Some(entry.metadata.clone()),
        };
        let mut entries = self.queues.get(name).into_iter().flatten().map(contender);
        Inspection { holder: entries.next(), waiters: entries.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    fn retain(&mut self, name: &LockName, keep: impl Fn(&Entry) -> bool) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        queue.retain(|entry| keep(entry));
        if queue.is_empty() {
            self.queues.remove(name);
        } else {
            self.grant_first(name);
        }
    }

    fn grant_first(&mut self, name: &LockName) {
        let Some(first) = self.queues.get_mut(name).and_then(VecDeque::front_mut) else { return };
        if first.token.is_none() {
            self.last_token += 1;
            first.token = Some(FencingToken::new(self.last_token));
            if !self.muted {
                first.granted.notify_one();
            }
        }
    }
}
