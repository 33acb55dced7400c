//! Which of a client's waiters looks when the holder's time is over.
//!
//! Redis runs nothing when a key expires, so the clients that wait must ask. One waiter per client and lock is enough:
//! the others would ask in the same moment and get the same answer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// The lookouts of a client. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookouts(Arc<Mutex<HashMap<String, Post>>>);

/// What the waiters of a client for one lock share.
#[derive(Debug)]
struct Post {
    waiters: usize,
    /// One permit: its owner looks.
    turn: Arc<Semaphore>,
}

impl Lookouts {
    /// One waiter's part in the lookout for this lock.
    pub(crate) fn join(&self, lock: &str) -> Lookout {
        let mut posts = self.posts();
        let post = posts
            .entry(lock.to_owned())
            .or_insert_with(|| Post { waiters: 0, turn: Arc::new(Semaphore::new(1)) });
        post.waiters += 1;
        Lookout { lookouts: self.clone(), lock: lock.to_owned(), turn: Arc::clone(&post.turn), permit: None }
    }

    fn leave(&self, lock: &str) {
        let mut posts = self.posts();
        if let Some(post) = posts.get_mut(lock) {
            post.waiters -= 1;
            if post.waiters == 0 {
                posts.remove(lock);
            }
        }
    }

    fn posts(&self) -> MutexGuard<'_, HashMap<String, Post>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One waiter's part in the lookout for a lock.
#[derive(Debug)]
pub(crate) struct Lookout {
    lookouts: Lookouts,
    lock: String,
    turn: Arc<Semaphore>,
    /// While this waiter is the one that looks.
    permit: Option<OwnedSemaphorePermit>,
}

impl Lookout {
    /// Resolves when this waiter should look: it is its turn to, and the lock has ended; `None`: the lock stays until
    /// somebody deletes it.
    ///
    /// Cancel safe: a turn that came is kept.
    pub(crate) async fn over(&mut self, lock_ends: Option<Instant>) {
        if self.permit.is_none() {
            // It is never closed.
            self.permit = Arc::clone(&self.turn).acquire_owned().await.ok();
        }
        match lock_ends {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        // Before the mutex is taken: it wakes the next one.
        self.permit = None;
        self.lookouts.leave(&self.lock);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_waiter_of_a_lock_looks_and_the_next_when_it_leaves() {
        let lookouts = Lookouts::default();
        let (mut first, mut second) = (lookouts.join("x"), lookouts.join("x"));
        let mut other = lookouts.join("y");
        let ends = Some(Instant::now() + Duration::from_secs(1));
        first.over(ends).await;
        other.over(ends).await;
        let still = tokio::time::timeout(Duration::from_secs(60), second.over(ends)).await;
        assert!(still.is_err(), "two look at once");
        drop(first);
        second.over(ends).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_without_an_end_is_not_looked_at() {
        let mut lookout = Lookouts::default().join("x");
        assert!(tokio::time::timeout(Duration::from_secs(3600), lookout.over(None)).await.is_err());
    }

    /// Nothing is left for a later join to clear away, so a join costs the same however many locks are waited for.
    #[tokio::test]
    async fn last_waiter_of_a_lock_leaves_nothing() {
        let lookouts = Lookouts::default();
        let waiting = lookouts.join("waiting");
        for round in 0..3 {
            let (first, second) = (lookouts.join("x"), lookouts.join("x"));
            assert_eq!(lookouts.posts().len(), 2, "round {round}");
            drop(first);
            assert_eq!(lookouts.posts().len(), 2, "round {round}: one still waits");
            drop(second);
            assert_eq!(lookouts.posts().len(), 1, "round {round}");
        }
        drop(waiting);
        assert_eq!(lookouts.posts().len(), 0);
    }
}
