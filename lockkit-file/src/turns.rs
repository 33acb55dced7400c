//! The local queue: of the waiters of one client, one polls, the others wait for their turn.
//!
//! A turn is passed on within microseconds, which another process that polls would hardly ever hit. So that it is not
//! starved by a client whose queue never runs empty, the turn pauses after [`STREAK_MAX`] for longer than a poll does.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use lockkit_core::LockName;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, SetOnce},
    time::Instant,
};

/// Longest time for which the waiters of one client pass a lock on among themselves without a pause.
pub const STREAK_MAX: Duration = Duration::from_millis(500);

/// The queues of one client, by lock name; a queue lives while somebody stands in it.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    queues: Arc<Mutex<HashMap<LockName, Weak<Queue>>>>,
}

/// Those who wait for one lock, first come, first served.
#[derive(Debug)]
pub(crate) struct Queue {
    name: LockName,
    turn: Arc<AsyncMutex<()>>,
    contended: SetOnce<()>,
    /// Since when the lock was passed on within the queue.
    streak: Mutex<Instant>,
    queues: Arc<Mutex<HashMap<LockName, Weak<Queue>>>>,
}

/// The right to poll for a lock, kept while the lock is held.
#[derive(Debug)]
pub(crate) struct Turn {
    _guard: OwnedMutexGuard<()>,
    _queue: Arc<Queue>,
}

impl Turns {
    /// The queue for this lock.
    pub(crate) fn queue(&self, name: &LockName) -> Arc<Queue> {
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.get(name).and_then(Weak::upgrade) {
            return queue;
        }
        let queue = Arc::new(Queue {
            name: name.clone(),
            turn: Arc::default(),
            contended: SetOnce::new(),
            streak: Mutex::new(Instant::now()),
            queues: Arc::clone(&self.queues),
        });
        queues.insert(name.clone(), Arc::downgrade(&queue));
        queue
    }
}

impl Queue {
    /// Waits for the turn.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue and nothing else.
    pub(crate) async fn turn(self: &Arc<Self>) -> Turn {
        Turn { _guard: Arc::clone(&self.turn).lock_owned().await, _queue: Arc::clone(self) }
    }

    /// Notes that the lock came from elsewhere.
    pub(crate) fn begin_streak(&self) {
        *lock(&self.streak) = Instant::now();
    }

    /// Whether it is time to let others have the lock; begins a new streak then. To be asked at the begin of a turn.
    pub(crate) fn end_streak(&self) -> bool {
        let mut streak = lock(&self.streak);
        let is_over = streak.elapsed() >= STREAK_MAX;
        if is_over {
            *streak = Instant::now();
        }
        is_over
    }

    /// Notes that one in this queue holds the lock or has found it held.
    pub(crate) fn note_contended(&self) {
        // An error says that it was noted before.
        let _ = self.contended.set(());
    }

    /// Waits until that was noted, once since the queue came to be.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn contended(&self) {
        self.contended.wait().await;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues);
        // A new queue may have taken the place since the last reference to this one went away.
        if queues.get(&self.name).is_some_and(|queue| queue.strong_count() == 0) {
            queues.remove(&self.name);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_pass_in_order_and_leave_nothing_behind() {
        let turns = Turns::default();
        let name = LockName::new("a").unwrap();
        let first = turns.queue(&name).turn().await;
        let queue = turns.queue(&name);
        let mut second = Box::pin(queue.turn());
        let mut third = Box::pin(queue.turn());
        tokio::select! { biased; _ = &mut second => panic!(), _ = &mut third => panic!(), () = async {} => {} }
        drop(first);
        let second = second.await;
        tokio::select! { biased; _ = &mut third => panic!("two turns at once"), () = async {} => {} }
        drop(second);
        drop(third.await);
        drop(queue);
        assert!(lock(&turns.queues).is_empty());
    }

    #[tokio::test]
    async fn one_who_goes_away_is_skipped() {
        let turns = Turns::default();
        let queue = turns.queue(&LockName::new("a").unwrap());
        let first = queue.turn().await;
        let mut gone = Box::pin(queue.turn());
        tokio::select! { biased; _ = &mut gone => panic!(), () = async {} => {} }
        drop(gone);
        drop(first);
        queue.turn().await;
    }
    #[tokio::test(start_paused = true)]
    async fn a_queue_that_never_runs_empty_pauses_now_and_then() {
        let turns = Turns::default();
        let queue = turns.queue(&LockName::new("a").unwrap());
        let after = |time| tokio::time::advance(time);
        assert!(!queue.end_streak());
        after(STREAK_MAX / 2).await;
        queue.begin_streak();
        after(STREAK_MAX / 2).await;
        assert!(!queue.end_streak(), "it came from elsewhere in between");
        after(STREAK_MAX / 2).await;
        assert!(queue.end_streak());
        assert!(!queue.end_streak(), "one pause, then the next streak");
    }
}
