//! Locks of enclosing `lockkit run`s. Acquiring one of them again is an error, because waiting would be a deadlock: the
//! enclosing job waits for this one.
//!
//! Every command has the locks of the enclosing `lockkit run`s in LOCKKIT_HELD, each with host and process id of its
//! holder. An entry counts only while that process holds the lock in the store that is used. The same name in another
//! store is another lock, whatever the store's URL looks like; and a daemon left behind by a job keeps the variable
//! after the lock was released.

use lockkit::{LockName, Metadata, backend::Inspection};
use serde::{Deserialize, Serialize};

/// The environment variable.
pub(crate) const VARIABLE: &str = "LOCKKIT_HELD";

/// The locks of the `lockkit run`s that enclose this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct EnclosingLocks(Vec<Entry>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    host: String,
    pid: u32,
}

impl EnclosingLocks {
    /// Reads the locks from the environment; an invalid value has none.
    pub(crate) fn from_environment() -> Self {
        Self::parse(&std::env::var(VARIABLE).unwrap_or_default())
    }

    fn parse(value: &str) -> Self {
        Self(serde_json::from_str(value).unwrap_or_default())
    }

    /// Whether a lock of this name is among them.
    pub(crate) fn has(&self, name: &LockName) -> bool {
        self.0.iter().any(|entry| entry.name == name.as_str())
    }

    /// Whether the lock's holder is a `lockkit run` that encloses this process.
    pub(crate) fn is_holder_of(&self, name: &LockName, found: &Inspection) -> bool {
        let Some(holder) = found.holder.as_ref().and_then(|holder| holder.metadata.as_ref()) else {
            return false;
        };
        self.0.iter().any(|entry| {
            (entry.name.as_str(), &entry.host, entry.pid) == (name.as_str(), &holder.host, holder.pid)
        })
    }

    /// Returns the variable's value for the command of this process, which holds the lock.
    pub(crate) fn value_with(mut self, name: &LockName) -> String {
        let Metadata { host, pid, .. } = Metadata::of_this_process(None);
        self.0.push(Entry { name: name.to_string(), host, pid });
        serde_json::to_string(&self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use lockkit::backend::Contender;

    use super::*;

    fn held_by(pid: u32) -> Inspection {
        let mut metadata = Metadata::of_this_process(None);
        metadata.pid = pid;
        Inspection::new(Some(Contender::new("k", None, Some(metadata))), Vec::new())
    }

    #[test]
    fn enclosing_lock_counts_while_the_same_process_holds_it() {
        let (name, other) = (LockName::new("a\n\"b\"").unwrap(), LockName::new("b").unwrap());
        let enclosing = EnclosingLocks::parse(&EnclosingLocks::default().value_with(&name));
        assert!(enclosing.has(&name) && !enclosing.has(&other));
        let me = std::process::id();
        assert!(enclosing.is_holder_of(&name, &held_by(me)));
        assert!(
            !enclosing.is_holder_of(&other, &held_by(me)),
            "a lock of the same process, but not this one"
        );
        assert!(!enclosing.is_holder_of(&name, &held_by(1)), "another process holds it by now");
        let mut elsewhere = held_by(me);
        if let Some(metadata) = elsewhere.holder.as_mut().and_then(|holder| holder.metadata.as_mut()) {
            metadata.host.push('x');
        }
        assert!(!enclosing.is_holder_of(&name, &elsewhere), "a process of this number on another host");
        assert!(!enclosing.is_holder_of(&name, &Inspection::default()), "nobody holds it by now");
    }

    #[test]
    fn invalid_value_has_no_locks() {
        for value in ["", "yes", "{}", "[1]"] {
            assert!(EnclosingLocks::parse(value).0.is_empty(), "{value}");
        }
    }
}
