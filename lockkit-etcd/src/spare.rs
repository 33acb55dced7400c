//! Keys that later claims of this client may use again.
//!
//! To etcd a deleted key stays part of its queue until the history is compacted: every read of the queue walks over it.
//! With a key of its own for every claim a lock that was taken 30,000 times since the last compaction took ten times as
//! long as a fresh one (`docs/decisions/0004-etcd-keys-are-used-again.md`). So a claim leaves its key to the next one.
//!
//! A key is left only when every request that names it was answered: then nothing that is still on its way can touch the
//! claim that uses it next. What was *seen* of an earlier claim tells itself by its create revision.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::keys::Queue;

/// Keys that are kept; all are forgotten when there are more.
const SPARE_KEYS_MAX: usize = 16_384;

/// Keys that later claims may use again, by queue.
#[derive(Debug, Default)]
pub(crate) struct SpareKeys(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    keys: HashMap<Queue, Vec<String>>,
    count: usize,
}

impl SpareKeys {
    /// A key of this queue, for one claim.
    pub(crate) fn take(&self, queue: &Queue) -> Option<String> {
        let mut kept = self.lock();
        let keys = kept.keys.get_mut(queue)?;
        let key = keys.pop();
        if keys.is_empty() {
            kept.keys.remove(queue);
        }
        kept.count -= usize::from(key.is_some());
        key
    }

    /// Leaves a key that no request on its way names any more.
    pub(crate) fn leave(&self, queue: &Queue, key: String) {
        let mut kept = self.lock();
        if kept.count >= SPARE_KEYS_MAX {
            *kept = Kept::default();
        }
        kept.keys.entry(queue.clone()).or_default().push(key);
        kept.count += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::keys::{Layout, Names};

    #[test]
    fn keys_that_are_kept_are_bounded() {
        let queue = Layout::new("", Names::Encoded).queue(&LockName::new("x").unwrap()).unwrap();
        let spare = SpareKeys::default();
        for number in 0..=SPARE_KEYS_MAX {
            spare.leave(&queue, number.to_string());
        }
        assert!(std::iter::from_fn(|| spare.take(&queue)).count() <= SPARE_KEYS_MAX);
    }
}
