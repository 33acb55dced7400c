//! The local queue: of the waiters of one client for a lock, one polls, and the others wait for their turn.
//!
//! Turns pass within microseconds, so another process that polls would rarely find the lock free. A client whose queue
//! is never empty would starve it. So after [`STREAK_MAX`] the next turn pauses for longer than one poll pause.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use lockkit_core::{LockName, support::lock};
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch},
    time::Instant,
};

/// Longest time during which the waiters of one client pass a lock on among themselves without a pause.
pub const STREAK_MAX: Duration = Duration::from_millis(500);

/// The queues of one client, by lock name. A queue exists while it has waiters or a holder.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues {
    queues: Arc<Mutex<HashMap<LockName, Weak<LocalQueue>>>>,
}

/// The waiters for one lock, first come, first served.
#[derive(Debug)]
pub(crate) struct LocalQueue {
    name: LockName,
    turn: Arc<AsyncMutex<()>>,
    /// Whether the claim that has the turn holds the lock or has found it held.
    contended: watch::Sender<bool>,
    /// The start of the present streak, in which the lock is passed on within the queue.
    streak: Mutex<Instant>,
    queues: Arc<Mutex<HashMap<LockName, Weak<LocalQueue>>>>,
}

/// The turn of one waiter: only it polls for the lock. The holder keeps it.
#[derive(Debug)]
pub(crate) struct PollingTurn {
    _guard: OwnedMutexGuard<()>,
    queue: Arc<LocalQueue>,
}

impl LocalQueues {
    /// Returns the queue of this lock.
    pub(crate) fn queue(&self, name: &LockName) -> Arc<LocalQueue> {
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.get(name).and_then(Weak::upgrade) {
            return queue;
        }
        let queue = Arc::new(LocalQueue {
            name: name.clone(),
            turn: Arc::default(),
            contended: watch::Sender::default(),
            streak: Mutex::new(Instant::now()),
            queues: Arc::clone(&self.queues),
        });
        queues.insert(name.clone(), Arc::downgrade(&queue));
        queue
    }
}

impl LocalQueue {
    /// Waits for the turn.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, and has no other effect.
    pub(crate) async fn turn(self: &Arc<Self>) -> PollingTurn {
        PollingTurn { _guard: Arc::clone(&self.turn).lock_owned().await, queue: Arc::clone(self) }
    }

    /// Starts a streak: the lock came from another client.
    pub(crate) fn begin_streak(&self) {
        *lock(&self.streak) = Instant::now();
    }

    /// Returns whether the streak is over, so that the new turn must pause; starts the next streak then.
    pub(crate) fn end_streak(&self) -> bool {
        let mut streak = lock(&self.streak);
        let is_over = streak.elapsed() >= STREAK_MAX;
        if is_over {
            *streak = Instant::now();
        }
        is_over
    }

    /// Notes that the claim that has the turn holds the lock or has found it held.
    pub(crate) fn note_contended(&self) {
        self.contended.send_replace(true);
    }

    /// Waits until contention is noted.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn contended(&self) {
        // The sender lives as long as the queue.
        let _ = self.contended.subscribe().wait_for(|contended| *contended).await;
    }
}

impl Drop for PollingTurn {
    fn drop(&mut self) {
        // Before the next turn: a lock that is free, on a disk that does not answer, is not busy.
        self.queue.contended.send_replace(false);
    }
}

impl Drop for LocalQueue {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues);
        // Another queue may have been entered since the last reference to this one went away.
        if queues.get(&self.name).is_some_and(|queue| queue.strong_count() == 0) {
            queues.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_pass_in_order_and_leave_nothing_behind() {
        let queues = LocalQueues::default();
        let name = LockName::new("a").unwrap();
        let first = queues.queue(&name).turn().await;
        let queue = queues.queue(&name);
        let mut second = Box::pin(queue.turn());
        let mut third = Box::pin(queue.turn());
        tokio::select! { biased; _ = &mut second => panic!(), _ = &mut third => panic!(), () = async {} => {} }
        drop(first);
        let second = second.await;
        tokio::select! { biased; _ = &mut third => panic!("two turns at once"), () = async {} => {} }
        drop(second);
        drop(third.await);
        drop(queue);
        assert!(lock(&queues.queues).is_empty());
    }

    #[tokio::test]
    async fn contention_ends_with_the_turn_that_noted_it() {
        let queue = LocalQueues::default().queue(&LockName::new("a").unwrap());
        let turn = queue.turn().await;
        queue.note_contended();
        queue.contended().await;
        drop(turn);
        let _next = queue.turn().await;
        tokio::select! { biased; () = queue.contended() => panic!("nobody holds it"), () = async {} => {} }
        queue.note_contended();
        queue.contended().await;
    }

    #[tokio::test]
    async fn waiter_that_leaves_is_skipped() {
        let queues = LocalQueues::default();
        let queue = queues.queue(&LockName::new("a").unwrap());
        let first = queue.turn().await;
        let mut gone = Box::pin(queue.turn());
        tokio::select! { biased; _ = &mut gone => panic!(), () = async {} => {} }
        drop(gone);
        drop(first);
        queue.turn().await;
    }

    #[tokio::test]
    async fn queue_that_ends_leaves_the_next_one_of_its_name() {
        let (queues, name) = (LocalQueues::default(), LockName::new("a").unwrap());
        let earlier = queues.queue(&name);
        // As if its last reference had gone away when the next waiter looked.
        lock(&queues.queues).clear();
        let later = queues.queue(&name);
        drop(earlier);
        assert!(Arc::ptr_eq(&queues.queue(&name), &later), "two waiters of one client would poll");
    }

    #[tokio::test(start_paused = true)]
    async fn streak_takes_half_a_second() {
        let queue = LocalQueues::default().queue(&LockName::new("a").unwrap());
        tokio::time::advance(Duration::from_millis(499)).await;
        assert!(!queue.end_streak());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(queue.end_streak());
    }

    #[tokio::test(start_paused = true)]
    async fn busy_queue_pauses_after_each_streak() {
        let queues = LocalQueues::default();
        let queue = queues.queue(&LockName::new("a").unwrap());
        let after = |time| tokio::time::advance(time);
        assert!(!queue.end_streak());
        after(STREAK_MAX / 2).await;
        queue.begin_streak();
        after(STREAK_MAX / 2).await;
        assert!(!queue.end_streak(), "the lock came from another client in between");
        after(STREAK_MAX / 2).await;
        assert!(queue.end_streak());
        assert!(!queue.end_streak(), "one pause, then the next streak");
    }
}
