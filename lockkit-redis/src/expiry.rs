//! Who of a client's waiters looks when the holder's time is over.
//!
//! Redis runs nothing when a key expires, so the clients that wait must ask. One waiter per client and lock is enough:
//! the others would ask in the same moment and be told the same.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// Redis counts whole milliseconds, and a key has expired when its last one is over.
const ROUNDING: Duration = Duration::from_millis(1);

/// The lookouts of a client.
#[derive(Debug, Default)]
pub(crate) struct Lookouts(Mutex<HashMap<String, Weak<Semaphore>>>);

impl Lookouts {
    /// One waiter's part in the lookout for this lock.
    pub(crate) fn join(&self, lock: &str) -> Lookout {
        let mut posts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let post = match posts.get(lock).and_then(Weak::upgrade) {
            Some(post) => post,
            None => {
                // The first waiter for a lock also clears away what the last ones of others have left.
                posts.retain(|_, post| post.strong_count() > 0);
                let post = Arc::new(Semaphore::new(1));
                posts.insert(lock.to_owned(), Arc::downgrade(&post));
                post
            }
        };
        Lookout { post, permit: None, expires_at: None }
    }
}

/// One waiter's part in the lookout for a lock.
#[derive(Debug)]
pub(crate) struct Lookout {
    post: Arc<Semaphore>,
    /// While this waiter is the one that looks.
    permit: Option<OwnedSemaphorePermit>,
    /// `None`: the lock stays until somebody deletes it.
    expires_at: Option<Instant>,
}

impl Lookout {
    /// The server has just said how long the lock lives.
    pub(crate) fn note(&mut self, pttl: Option<Duration>) {
        self.expires_at = pttl.map(|pttl| Instant::now() + pttl + ROUNDING);
    }

    /// Resolves when this waiter should look: it is its turn to, and the holder's time is over.
    ///
    /// Cancel safe: a turn that came is kept.
    pub(crate) async fn over(&mut self) {
        if self.permit.is_none() {
            // It is never closed.
            self.permit = Arc::clone(&self.post).acquire_owned().await.ok();
        }
        match self.expires_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_waiter_of_a_lock_looks_and_the_next_when_it_leaves() {
        let lookouts = Lookouts::default();
        let (mut first, mut second) = (lookouts.join("x"), lookouts.join("x"));
        let mut other = lookouts.join("y");
        for lookout in [&mut first, &mut second, &mut other] {
            lookout.note(Some(Duration::from_secs(1)));
        }
        first.over().await;
        other.over().await;
        let still = tokio::time::timeout(Duration::from_secs(60), second.over()).await;
        assert!(still.is_err(), "two look at once");
        drop(first);
        second.over().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_without_an_end_is_not_looked_at() {
        let mut lookout = Lookouts::default().join("x");
        lookout.note(None);
        assert!(tokio::time::timeout(Duration::from_secs(3600), lookout.over()).await.is_err());
    }
}
