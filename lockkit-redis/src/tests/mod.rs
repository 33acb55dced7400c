//! What unit tests of several modules share.

use lockkit_core::LockName;

use crate::keys::{Layout, LockKeys, Names};

pub(crate) mod scripted;

/// The keys of a lock.
pub(crate) fn keys() -> LockKeys {
    Layout::new("", Names::Encoded, false).keys(&LockName::new("x").unwrap()).unwrap()
}
