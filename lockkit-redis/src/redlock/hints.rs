//! Hints that a lock may be free. A hint may come too early, or never.
//!
//! Every node where the release of a grant deletes a key publishes on a channel of the lock; a clean-up does not. A
//! client subscribes while one of its claims waits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use lockkit_core::support::lock;
use tokio::sync::Notify;

use crate::topology::Listener;

/// The channels that a session is subscribed to, and how many of its claims wait for each.
#[derive(Debug, Default)]
pub(super) struct Hints(Mutex<HashMap<String, (usize, Arc<Notify>)>>);

impl Hints {
    /// Adds a waiter. Returns its notification, and whether it is the first waiter of the channel.
    pub(super) fn add_waiter(&self, channel: &str) -> (Arc<Notify>, bool) {
        let mut channels = self.lock();
        let (count, notify) = channels.entry(channel.to_owned()).or_default();
        *count += 1;
        (Arc::clone(notify), *count == 1)
    }

    /// Removes a waiter. Returns whether it was the last one of the channel.
    pub(super) fn remove_waiter(&self, channel: &str) -> bool {
        let mut channels = self.lock();
        let Some((count, _)) = channels.get_mut(channel) else { return false };
        *count -= 1;
        let was_last = *count == 0;
        if was_last {
            channels.remove(channel);
        }
        was_last
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (usize, Arc<Notify>)>> {
        lock(&self.0)
    }
}

impl Listener for Hints {
    fn channels(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    fn message(&self, channel: &str, _: &str) {
        if let Some((_, notify)) = self.lock().get(channel) {
            notify.notify_waiters();
        }
    }

    fn gap(&self) {
        self.lock().values().for_each(|(_, notify)| notify.notify_waiters());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn message_wakes_all_waiters_of_its_lock() {
        let hints = Hints::default();
        let ((one, is_first), (other, is_second)) = (hints.add_waiter("x"), hints.add_waiter("x"));
        let (apart, _) = hints.add_waiter("y");
        assert!(is_first && !is_second);
        let (one, other, apart) = (one.notified(), other.notified(), apart.notified());
        tokio::pin!(one, other, apart);
        assert!(!one.as_mut().enable() && !other.as_mut().enable() && !apart.as_mut().enable());
        hints.message("x", "");
        one.await;
        other.await;
        assert!(!apart.as_mut().enable());
    }

    #[test]
    fn last_waiter_removes_the_channel() {
        let hints = Hints::default();
        hints.add_waiter("x");
        hints.add_waiter("x");
        assert_eq!(
            (hints.remove_waiter("x"), hints.remove_waiter("x"), hints.remove_waiter("x")),
            (false, true, false)
        );
        assert!(hints.channels().is_empty());
    }
}
