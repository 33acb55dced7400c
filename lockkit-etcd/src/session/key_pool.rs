//! Keys of ended claims, for reuse by later claims of this client.
//!
//! etcd keeps a deleted key in its index until the history is compacted, and every read of the queue walks over it.
//! With a new key for every claim, a lock that was taken 30,000 times since the last compaction took ten times as long
//! as a fresh one (`docs/decisions/0004-etcd-keys-are-reused.md`). So later claims reuse the keys of earlier ones.
//!
//! A key enters the pool only if every request that names it was answered. Then no request that is still under way can
//! affect the claim that uses the key next. Events about the earlier claim are recognized by its create revision.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use lockkit_core::support::lock;

use crate::keys::QueuePath;

/// Maximum number of keys in the pool; it is emptied when it is full.
const POOLED_KEYS_MAX: usize = 16_384;

/// The reusable keys, by queue.
#[derive(Debug, Default)]
pub(crate) struct KeyPool(Mutex<Pool>);

#[derive(Debug, Default)]
struct Pool {
    keys: HashMap<QueuePath, Vec<String>>,
    count: usize,
}

impl KeyPool {
    /// Takes a key of this queue out of the pool.
    pub(crate) fn take(&self, queue: &QueuePath) -> Option<String> {
        let mut pool = self.lock();
        let keys = pool.keys.get_mut(queue)?;
        let key = keys.pop();
        if keys.is_empty() {
            pool.keys.remove(queue);
        }
        pool.count -= usize::from(key.is_some());
        key
    }

    /// Adds a key. No request that is still under way may name it.
    pub(crate) fn put_back(&self, queue: &QueuePath, key: String) {
        let mut pool = self.lock();
        if pool.count >= POOLED_KEYS_MAX {
            *pool = Pool::default();
        }
        pool.keys.entry(queue.clone()).or_default().push(key);
        pool.count += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::keys::{Layout, Names};

    /// Keys that were taken again do not count.
    #[test]
    fn pool_that_is_not_full_keeps_its_keys() {
        let queue = |name| Layout::new("", Names::Encoded).queue(&LockName::new(name).unwrap()).unwrap();
        let (kept, other, pool) = (queue("kept"), queue("other"), KeyPool::default());
        pool.put_back(&kept, "key".to_owned());
        for _ in 0..=POOLED_KEYS_MAX {
            pool.put_back(&other, String::new());
            pool.take(&other).unwrap();
        }
        assert_eq!(pool.take(&kept).as_deref(), Some("key"));
    }

    #[test]
    fn pooled_keys_are_bounded() {
        let queue = Layout::new("", Names::Encoded).queue(&LockName::new("x").unwrap()).unwrap();
        let pool = KeyPool::default();
        for number in 0..=POOLED_KEYS_MAX {
            pool.put_back(&queue, number.to_string());
        }
        assert!(std::iter::from_fn(|| pool.take(&queue)).count() <= POOLED_KEYS_MAX);
    }

    /// A client may use any number of locks, each of them once.
    #[test]
    fn queue_without_a_pooled_key_leaves_nothing() {
        let queue = Layout::new("", Names::Encoded).queue(&LockName::new("x").unwrap()).unwrap();
        let pool = KeyPool::default();
        pool.put_back(&queue, "key".to_owned());
        pool.take(&queue).unwrap();
        assert!(pool.lock().keys.is_empty());
    }
}
