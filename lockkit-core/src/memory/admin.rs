//! What an operator asks of a memory server.

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    MemoryBackend,
    session::answered,
    store::{Entry, Store},
};
use crate::{
    LockName, Result,
    backend::{Admin, Contender, Inspection, ListedLock, Page},
    limits::TTL_DEFAULT,
};

#[async_trait]
impl Admin for MemoryBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        Ok(self.server.inspect(name))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        let list = move |store: &mut Store| store.list(&prefix, after.as_deref(), limit);
        answered("list locks", TTL_DEFAULT, self.server.request("list locks", list)).await
    }

    async fn break_lock(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        let (of, holder) = (name.clone(), holder.clone());
        let end = move |store: &mut Store| store.break_lock(&of, &holder);
        let broken = answered("break", TTL_DEFAULT, self.server.request("break", end)).await;
        broken.map_err(|error| error.with_lock(name))
    }
}

impl Store {
    pub(super) fn inspect(&self, name: &LockName, now: Instant) -> Inspection {
        let mut contenders =
            self.queues.get(name).into_iter().flatten().map(|entry| self.contender(entry, now));
        Inspection::new(contenders.next(), contenders.collect())
    }

    /// Returns the locks in the order of their names; `after` is the last name of the page before.
    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Page {
        let is_wanted = |name: &&LockName| {
            name.as_str().starts_with(prefix) && after.is_none_or(|after| name.as_str() > after)
        };
        let mut names: Vec<&LockName> = self.queues.keys().filter(is_wanted).collect();
        names.sort_unstable();
        let is_last = names.len() <= limit.max(1);
        names.truncate(limit.max(1));
        let next = names.last().filter(|_| !is_last).map(|name| name.as_str().to_owned());
        let listed = |name: &LockName| ListedLock::new(Some(name.clone()), name.as_str());
        Page::new(names.into_iter().map(listed).collect(), next)
    }

    /// Ends the hold of this contender and reports the loss to its session; returns whether it was the holder.
    fn break_lock(&mut self, name: &LockName, holder: &Contender) -> bool {
        let Some(first) = self.queues.get(name).and_then(|queue| queue.front()) else { return false };
        if first.claim.to_string() != holder.entry || first.token != holder.token {
            return false;
        }
        let (claim, session) = (first.claim, first.session);
        self.remove(name, claim);
        if let Some(server_session) = self.sessions.get(&session).filter(|_| !self.muted) {
            // Fails if the client is gone.
            let _ = server_session.broken.send(claim);
        }
        true
    }

    fn contender(&self, entry: &Entry, now: Instant) -> Contender {
        let contender =
            Contender::new(entry.claim.to_string(), entry.token, Some(entry.metadata.record().clone()))
                .with_session(entry.session.to_string());
        let expiry = self.sessions.get(&entry.session).filter(|_| !entry.left).map(|one| one.expires_at);
        match expiry.max(entry.pinned_until) {
            Some(expiry) => contender.with_remaining(expiry.saturating_duration_since(now)),
            None => contender,
        }
    }
}
