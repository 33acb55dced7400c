//! Waiters hear that a lock may be free. A hint, nothing more: it may come too early, or never.
//!
//! The release of a grant is published on a channel of its lock, by every node where it has deleted a key; what an attempt
//! takes back is not. A client listens there while one of its claims waits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redis::{PushInfo, Value};
use tokio::sync::Notify;

/// The channels that a session listens to, and how many of its claims wait for each.
#[derive(Debug, Default)]
pub(super) struct Hints(Mutex<HashMap<String, (usize, Arc<Notify>)>>);

impl Hints {
    /// One more claim waits; whether it is the first.
    pub(super) fn join(&self, channel: &str) -> (Arc<Notify>, bool) {
        let mut channels = self.lock();
        let (count, notify) = channels.entry(channel.to_owned()).or_default();
        *count += 1;
        (Arc::clone(notify), *count == 1)
    }

    /// One claim less waits; whether it was the last.
    pub(super) fn leave(&self, channel: &str) -> bool {
        let mut channels = self.lock();
        let Some((count, _)) = channels.get_mut(channel) else { return false };
        *count -= 1;
        let was_last = *count == 0;
        if was_last {
            channels.remove(channel);
        }
        was_last
    }

    pub(super) fn channels(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    pub(super) fn hear(&self, push: &PushInfo) {
        if let Some(Value::BulkString(channel)) = push.data.first()
            && let Ok(channel) = std::str::from_utf8(channel)
            && let Some((_, notify)) = self.lock().get(channel)
        {
            notify.notify_waiters();
        }
    }

    pub(super) fn wake_all(&self) {
        self.lock().values().for_each(|(_, notify)| notify.notify_waiters());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (usize, Arc<Notify>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(channel: &str) -> PushInfo {
        let data = vec![Value::BulkString(channel.into()), Value::BulkString(Vec::new())];
        PushInfo { kind: redis::PushKind::Message, data }
    }

    #[tokio::test]
    async fn a_message_wakes_all_who_wait_for_that_lock() {
        let hints = Hints::default();
        let ((one, is_first), (other, is_second)) = (hints.join("x"), hints.join("x"));
        let (apart, _) = hints.join("y");
        assert!(is_first && !is_second);
        let (one, other, apart) = (one.notified(), other.notified(), apart.notified());
        tokio::pin!(one, other, apart);
        assert!(!one.as_mut().enable() && !other.as_mut().enable() && !apart.as_mut().enable());
        hints.hear(&message("x"));
        one.await;
        other.await;
        assert!(!apart.as_mut().enable());
    }

    #[test]
    fn the_last_to_leave_ends_the_listening() {
        let hints = Hints::default();
        hints.join("x");
        hints.join("x");
        assert_eq!((hints.leave("x"), hints.leave("x"), hints.leave("x")), (false, true, false));
        assert!(hints.channels().is_empty());
    }
}
