//! The epoch of a session: the revision of its last epoch bump.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::wire::Revision;

/// The highest mod revision of the client's epoch key that a reply has shown.
#[derive(Debug, Default)]
pub(crate) struct Epoch(AtomicI64);

impl Epoch {
    pub(crate) fn current(&self) -> Revision {
        self.0.load(Ordering::Acquire)
    }

    /// Notes a mod revision. Replies arrive in any order, so the highest counts.
    pub(crate) fn observe(&self, revision: Revision) {
        self.0.fetch_max(revision, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_revision_that_arrives_later_is_ignored() {
        let epoch = Epoch::default();
        for (seen, current) in [(5, 5), (3, 5), (7, 7)] {
            epoch.observe(seen);
            assert_eq!(epoch.current(), current);
        }
    }
}
