//! Hints that a lock may be free, and that an operator has broken a hold. A hint may come too early, or never.
//!
//! Every node where the release of a grant deletes a key publishes on a channel of the lock; a clean-up does not. A
//! client subscribes while one of its claims waits. All sessions share one channel for breaks, which are rare.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use lockkit_core::{backend::ClaimId, support::lock};
use tokio::sync::{Notify, mpsc};

use super::wire::broken_channel;
use crate::topology::Listener;

/// Broken holds that are not handled yet. Of more at once, heartbeats find the losses.
const BROKEN_MAX: usize = 64;

/// The channels that a session is subscribed to.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// How many of its claims wait for each lock.
    waiters: Mutex<HashMap<String, (usize, Arc<Notify>)>>,
    /// Receives the attempts whose holds were broken; `None` without a session.
    broken: Option<mpsc::Sender<ClaimId>>,
}

impl Hints {
    /// The hints of a session, and the attempts whose holds were broken: of any client, and once from each node.
    pub(super) fn of_session() -> (Self, mpsc::Receiver<ClaimId>) {
        let (broken, received) = mpsc::channel(BROKEN_MAX);
        (Self { waiters: Mutex::default(), broken: Some(broken) }, received)
    }

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
        lock(&self.waiters)
    }
}

impl Listener for Hints {
    fn channels(&self) -> Vec<String> {
        let broken = self.broken.iter().map(|_| broken_channel());
        self.lock().keys().cloned().chain(broken).collect()
    }

    /// Without the right to subscribe, waiters poll and heartbeats find losses.
    fn needs_channels(&self) -> bool {
        false
    }

    fn message(&self, channel: &str, text: &str) {
        if channel == broken_channel() {
            if let (Some(broken), Some(attempt)) = (&self.broken, ClaimId::parse(text)) {
                // No room: see `BROKEN_MAX`.
                let _ = broken.try_send(attempt);
            }
        } else if let Some((_, notify)) = self.lock().get(channel) {
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
