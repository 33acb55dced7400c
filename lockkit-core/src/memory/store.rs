//! The state of a memory server: a queue per lock and a table of sessions. Pure code; the time is an argument.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    FencingToken, LockName, Metadata,
    backend::{ClaimId, LeaderEntry},
    metadata::ClaimMetadata,
};

pub(super) type SessionId = u64;

/// The queues and sessions of a server.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) queues: HashMap<LockName, VecDeque<Entry>>,
    pub(super) sessions: HashMap<SessionId, ServerSession>,
    last_session: SessionId,
    last_token: u64,
    records: HashMap<LockName, Record>,
    /// Wakes the watches on leaders.
    leaders_changed: watch::Sender<()>,
    renewed_claims: u64,
    /// Whether the holder of a queue may have left an entry that only its pin keeps.
    has_left: bool,
    pub(super) muted: bool,
}

#[derive(Debug)]
struct Record {
    text: String,
    kept_until: Instant,
}

/// A claim in a queue; the first one holds the lock and has a token.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) session: SessionId,
    pub(super) claim: ClaimId,
    pub(super) metadata: ClaimMetadata,
    /// Notified of the grant; `None` for an entry that was granted when it was made.
    pub(super) granted: Option<Arc<Notify>>,
    pub(super) token: Option<FencingToken>,
    /// The holder's entry stays until then, whatever becomes of its session.
    pub(super) pinned_until: Option<Instant>,
    /// Its holder has left; only the pin keeps it.
    pub(super) left: bool,
}

/// A session, as the server keeps it.
#[derive(Debug)]
pub(super) struct ServerSession {
    ttl: Duration,
    pub(super) expires_at: Instant,
    ended: CancellationToken,
    /// Reports the holds that an operator has broken; at most one for each grant of the session.
    pub(super) broken: mpsc::UnboundedSender<ClaimId>,
}

/// What the server gives to a new session.
#[derive(Debug)]
pub(super) struct OpenedSession {
    pub(super) id: SessionId,
    /// Cancelled by the server when the session ends.
    pub(super) ended: CancellationToken,
    pub(super) broken: mpsc::UnboundedReceiver<ClaimId>,
}

/// The state of a claim at the store.
#[derive(Debug)]
pub(super) enum ClaimState {
    Holder(FencingToken),
    /// It waits; the grant notifies it.
    Waiter(Arc<Notify>),
    /// Another claim holds the lock, and this one is not queued.
    Busy,
    /// The claim has no entry, or its session is over.
    Absent,
}

impl Store {
    pub(super) fn open(&mut self, ttl: Duration, now: Instant) -> OpenedSession {
        self.last_session += 1;
        let ended = CancellationToken::new();
        let (report, broken) = mpsc::unbounded_channel();
        let session = ServerSession { ttl, expires_at: now + ttl, ended: ended.clone(), broken: report };
        self.sessions.insert(self.last_session, session);
        OpenedSession { id: self.last_session, ended, broken }
    }

    /// Adds a claim to the queue; idempotent by its id. `wait` is false for a try.
    pub(super) fn enqueue(&mut self, name: &LockName, entry: Entry, wait: bool) -> ClaimState {
        if !self.sessions.contains_key(&entry.session) {
            return ClaimState::Absent;
        }
        let claim = entry.claim;
        // Most queues never have a second entry.
        let queue = self.queues.entry(name.clone()).or_insert_with(|| VecDeque::with_capacity(1));
        if !queue.iter().any(|other| other.claim == claim) {
            if !wait && !queue.is_empty() {
                return ClaimState::Busy;
            }
            let granted = (!queue.is_empty()).then(Arc::default);
            queue.push_back(Entry { granted, ..entry });
            self.grant_first(name);
        }
        self.claim_state(name, claim)
    }

    pub(super) fn claim_state(&self, name: &LockName, claim: ClaimId) -> ClaimState {
        let entry = self.queues.get(name).and_then(|queue| queue.iter().find(|entry| entry.claim == claim));
        match entry {
            None | Some(Entry { left: true, .. }) => ClaimState::Absent,
            Some(Entry { token: Some(token), .. }) => ClaimState::Holder(*token),
            Some(Entry { granted, .. }) => ClaimState::Waiter(granted.clone().unwrap_or_default()),
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
        let server_session = self.sessions.get_mut(&session)?;
        server_session.expires_at = now + server_session.ttl;
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

    /// Ends a session and removes its claims, except a holder whose pin lasts.
    pub(super) fn end(&mut self, session: SessionId, now: Instant) {
        let Some(server_session) = self.sessions.remove(&session) else { return };
        if !self.muted {
            server_session.ended.cancel();
        }
        let names: Vec<LockName> = self.queues.keys().cloned().collect();
        for name in names {
            self.leave_pinned(&name, now, |entry| entry.session == session);
            self.retain(&name, |entry| entry.session != session || entry.left);
        }
    }

    /// Ends the sessions whose lifetime has passed.
    pub(super) fn sweep(&mut self, now: Instant) {
        let expired: Vec<SessionId> =
            self.sessions.iter().filter(|(_, one)| one.expires_at <= now).map(|(id, _)| *id).collect();
        for session in expired {
            self.end(session, now);
        }
        if !self.has_left {
            return;
        }
        let unpinned = |entry: &Entry| entry.left && entry.pinned_until.is_none_or(|until| until <= now);
        let names: Vec<LockName> = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.front().is_some_and(unpinned))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.retain(&name, |entry| !unpinned(entry));
        }
        self.has_left = self.queues.values().any(|queue| queue.front().is_some_and(|entry| entry.left));
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let sessions = self.sessions.values().map(|session| session.expires_at);
        let left = self.queues.values().filter_map(VecDeque::front).filter(|entry| entry.left);
        sessions.chain(left.filter_map(|entry| entry.pinned_until)).min()
    }

    /// Makes a holder's entry stay until then; returns whether the claim holds the lock.
    pub(super) fn pin(&mut self, name: &LockName, claim: ClaimId, until: Instant) -> bool {
        let Some(holder) = self.holder_mut(name, claim) else { return false };
        holder.pinned_until = holder.pinned_until.max(Some(until));
        true
    }

    /// Ends a hold, and leaves its entry until the end of its pin.
    pub(super) fn leave(&mut self, name: &LockName, claim: ClaimId, now: Instant) {
        self.leave_pinned(name, now, |entry| entry.claim == claim);
        self.retain(name, |entry| entry.claim != claim || entry.left);
    }

    fn leave_pinned(&mut self, name: &LockName, now: Instant, of: impl Fn(&Entry) -> bool) {
        let Some(holder) = self.queues.get_mut(name).and_then(VecDeque::front_mut) else { return };
        if of(holder) && holder.pinned_until.is_some_and(|until| now < until) {
            holder.left = true;
            self.has_left = true;
        }
    }

    fn holder_mut(&mut self, name: &LockName, claim: ClaimId) -> Option<&mut Entry> {
        let first = self.queues.get_mut(name)?.front_mut()?;
        Some(first).filter(|entry| entry.claim == claim && entry.token.is_some() && !entry.left)
    }

    pub(super) fn leader(&self, name: &LockName) -> Option<LeaderEntry> {
        let first = self.queues.get(name)?.front().filter(|entry| !entry.left)?;
        Some(LeaderEntry::of_metadata(first.token?, Some(first.metadata.record().clone())))
    }

    pub(super) fn watch_leaders(&self) -> watch::Receiver<()> {
        self.leaders_changed.subscribe()
    }

    /// Replaces the metadata of the holder, unless its proposal is newer; returns whether the claim holds the lock.
    pub(super) fn proclaim(&mut self, name: &LockName, claim: ClaimId, metadata: &Metadata) -> bool {
        let Some(holder) = self.holder_mut(name, claim) else { return false };
        let written = holder.metadata.proposal().map(|proposal| proposal.number);
        if written <= metadata.proposal.as_ref().map(|proposal| proposal.number) {
            holder.metadata = metadata.clone().into();
        }
        self.note_leader_change();
        true
    }

    fn note_leader_change(&self) {
        if !self.muted {
            self.leaders_changed.send_replace(());
        }
    }

    pub(super) fn record(&self, name: &LockName, now: Instant) -> Option<String> {
        let record = self.records.get(name).filter(|record| now < record.kept_until)?;
        Some(record.text.clone())
    }

    /// Writes a record, and drops those whose time has passed; returns whether the claim holds the lock.
    pub(super) fn write_record(
        &mut self,
        name: &LockName,
        claim: ClaimId,
        text: &str,
        now: Instant,
        keep: Duration,
    ) -> bool {
        if self.holder_mut(name, claim).is_none() {
            return false;
        }
        self.records.retain(|_, record| now < record.kept_until);
        let kept_until = now + keep;
        self.records.insert(name.clone(), Record { text: text.to_owned(), kept_until });
        true
    }

    /// Returns when the session of the holder of this lock expires.
    pub(super) fn expiry_of_holder(&self, name: &LockName) -> Option<Instant> {
        let session = self.queues.get(name)?.front()?.session;
        Some(self.sessions.get(&session)?.expires_at)
    }

    pub(super) fn expire_holder(&mut self, name: &LockName, now: Instant) -> bool {
        self.expire_at(name, 0, now)
    }

    pub(super) fn expire_waiter(&mut self, name: &LockName, now: Instant) -> bool {
        self.expire_at(name, 1, now)
    }

    /// Ends the session of the entry at this index of the queue; returns whether there was one.
    fn expire_at(&mut self, name: &LockName, index: usize, now: Instant) -> bool {
        let entry = self.queues.get(name).and_then(|queue| queue.get(index)).map(|entry| entry.session);
        entry.inspect(|session| self.end(*session, now)).is_some()
    }

    pub(super) fn expire_all(&mut self, now: Instant) {
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.end(session, now);
        }
    }

    pub(super) fn delete_entries(&mut self, name: &LockName) {
        self.queues.remove(name);
        self.note_leader_change();
    }

    pub(super) fn mute(&mut self, muted: bool) {
        self.muted = muted;
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
        self.note_leader_change();
    }

    fn grant_first(&mut self, name: &LockName) {
        let Some(first) = self.queues.get_mut(name).and_then(VecDeque::front_mut) else { return };
        if first.token.is_none() {
            self.last_token += 1;
            first.token = Some(FencingToken::new(self.last_token));
            if let Some(granted) = first.granted.as_ref().filter(|_| !self.muted) {
                granted.notify_one();
            }
            self.note_leader_change();
        }
    }
}
