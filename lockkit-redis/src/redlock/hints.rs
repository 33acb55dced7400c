//! Hints that a lock may be free, and that an operator has broken a hold. A hint may come too early, or never.
//!
//! Every node where the release of a grant deletes a key publishes on a channel of the lock, or of one group of its
//! waiters (`scripts/hint.lua`, docs/decisions/0043); a clean-up does not. A client subscribes to both while one of its
//! claims waits. All sessions share one channel for breaks, which are rare.
//!
//! * The group that was notified does not want the lock any more: the others retry several times a second anyway.
//! * A session lost its subscription to one of the two at a node: it counts there as in no group, or is not counted. The
//!   next connection subscribes to both again.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use lockkit_core::{backend::ClaimId, support::lock};
use tokio::sync::{Notify, mpsc};

use super::wire::{broken_channel, released_channel, released_lock};
use crate::{keys::SIDE_KEY_PREFIX, topology::Listener};

/// Broken holds that are not handled yet. Of more at once, heartbeats find the losses.
const BROKEN_MAX: usize = 64;

/// Groups of the clients that wait for a lock; `hint.lua` has the same number.
const GROUPS: u8 = 64;

/// The channels that a session is subscribed to.
#[derive(Debug)]
pub(super) struct Hints {
    /// How many of its claims wait for each lock, by its key.
    waiters: Mutex<HashMap<String, (usize, Arc<Hint>)>>,
    /// What precedes the key of a lock in the channel of this session's group. No key of a lock begins so.
    group: String,
    /// Receives the attempts whose holds were broken; `None` without a session.
    broken: Option<mpsc::Sender<ClaimId>>,
}

/// Notifies the claims of a session that wait for one lock.
#[derive(Debug, Default)]
pub(super) struct Hint {
    pub(super) released: Notify,
    /// How many claims the last hint was sent to; 0 if that is not known.
    claims: AtomicUsize,
}

impl Hint {
    /// Returns how many claims received the last hint, as far as that is known.
    pub(super) fn claims(&self) -> Option<usize> {
        Some(self.claims.load(Relaxed)).filter(|claims| *claims > 0)
    }

    pub(super) fn send(&self, claims: usize) {
        self.claims.store(claims, Relaxed);
        self.released.notify_waiters();
    }
}

impl Default for Hints {
    fn default() -> Self {
        let group = format!("{SIDE_KEY_PREFIX}{}:", fastrand::u8(..GROUPS));
        Self { waiters: Mutex::default(), group, broken: None }
    }
}

impl Hints {
    /// Returns the hints of a session, and the attempts whose holds were broken: of any client, and once from each node.
    pub(super) fn of_session() -> (Self, mpsc::Receiver<ClaimId>) {
        let (broken, received) = mpsc::channel(BROKEN_MAX);
        (Self { broken: Some(broken), ..Self::default() }, received)
    }

    /// Adds a waiter. Returns its notification, and whether it is the first waiter of the lock.
    pub(super) fn add_waiter(&self, lock: &str) -> (Arc<Hint>, bool) {
        let mut locks = self.lock();
        let (count, hint) = locks.entry(lock.to_owned()).or_default();
        *count += 1;
        (Arc::clone(hint), *count == 1)
    }

    /// Removes a waiter. Returns whether it was the last one of the lock.
    pub(super) fn remove_waiter(&self, lock: &str) -> bool {
        let mut locks = self.lock();
        let Some((count, _)) = locks.get_mut(lock) else { return false };
        *count -= 1;
        let was_last = *count == 0;
        if was_last {
            locks.remove(lock);
        }
        was_last
    }

    pub(super) fn has_waiters(&self, lock: &str) -> bool {
        self.lock().contains_key(lock)
    }

    /// Returns the channel of a lock, and that of this session's group.
    pub(super) fn channels_of(&self, lock: &str) -> [String; 2] {
        [released_channel(lock), released_channel(&[&*self.group, lock].concat())]
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (usize, Arc<Hint>)>> {
        lock(&self.waiters)
    }
}

impl Listener for Hints {
    fn channels(&self) -> Vec<String> {
        let broken = self.broken.iter().map(|_| broken_channel());
        self.lock().keys().flat_map(|lock| self.channels_of(lock)).chain(broken).collect()
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
            return;
        }
        let Some(lock) = released_lock(channel) else { return };
        let lock = lock.strip_prefix(&self.group).unwrap_or(lock);
        if let Some((own, hint)) = self.lock().get(lock) {
            // This client counts as all of its claims.
            let clients: Option<usize> = text.parse().ok();
            hint.send(clients.map_or(0, |clients| clients.saturating_sub(1).saturating_add(*own)));
        }
    }

    fn gap(&self) {
        self.lock().values().for_each(|(_, hint)| hint.send(0));
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
        let [one, other, apart] = [&one, &other, &apart].map(|hint| hint.released.notified());
        tokio::pin!(one, other, apart);
        assert!(!one.as_mut().enable() && !other.as_mut().enable() && !apart.as_mut().enable());
        hints.message(&hints.channels_of("x")[0], "");
        one.await;
        other.await;
        assert!(!apart.as_mut().enable());
    }

    /// A session knows its own claims; of other clients only how many were notified.
    #[test]
    fn hint_says_how_many_claims_it_was_sent_to() {
        let hints = Hints::default();
        let (hint, _) = hints.add_waiter("x");
        hints.add_waiter("x");
        let [all, group] = hints.channels_of("x");
        let other_group = "lockkit:released:lockkit:64:x";
        let after = |channel: &str, text| {
            hints.message(channel, text);
            hint.claims()
        };
        assert_eq!((after(&all, "1"), after(&group, "3"), after(&all, "")), (Some(2), Some(4), None));
        assert_eq!(
            (after(&all, "2"), after(other_group, "9"), after(&group, "-1")),
            (Some(3), Some(3), None)
        );
        assert_eq!(after(&all, &usize::MAX.to_string()), Some(usize::MAX));
        let mut woken = std::pin::pin!(hint.released.notified());
        assert!(!woken.as_mut().enable());
        hints.gap();
        assert_eq!((woken.enable(), hint.claims()), (true, None), "a release may have been missed");
    }

    /// Heartbeats find other losses, but only later.
    #[test]
    fn holds_that_are_broken_at_once_are_all_reported() {
        let (hints, mut broken) = Hints::of_session();
        let attempts = [(); 50].map(|()| ClaimId::random());
        attempts.iter().for_each(|attempt| hints.message(&broken_channel(), &attempt.to_string()));
        let reported: Vec<ClaimId> = std::iter::from_fn(|| broken.try_recv().ok()).collect();
        assert_eq!(reported, attempts);
    }

    #[test]
    fn session_subscribes_to_each_lock_and_to_its_group() {
        let hints = Hints::default();
        hints.add_waiter("x");
        let channels = hints.channels();
        assert_eq!((&*channels[0], channels.len()), ("lockkit:released:x", 2));
        let group = channels[1].strip_prefix("lockkit:released:lockkit:").unwrap();
        let group: u8 = group.strip_suffix(":x").unwrap().parse().unwrap();
        assert!(group < GROUPS, "{group}");
    }

    /// Clients of other groups would be notified last.
    #[test]
    fn nodes_look_at_every_group() {
        let script = include_str!("scripts/hint.lua");
        assert!(script.contains(&format!("\nlocal GROUPS = {GROUPS}\n")));
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
