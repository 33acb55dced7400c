//! The same lock nested inside itself is refused, not waited for: it would be waited for until the enclosing job ends,
//! which waits for this one.
//!
//! Every command finds the locks of the `lockkit run`s around it in LOCKKIT_HELD. A daemon that such a command has
//! started keeps the variable when the lock is long free, so an entry counts only while its process is the holder.

use lockkit::{LockName, Metadata, backend::Inspection};
use serde::{Deserialize, Serialize};

/// The variable.
pub(crate) const VARIABLE: &str = "LOCKKIT_HELD";

/// The locks of the `lockkit run`s around this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    store: String,
    name: String,
    host: String,
    pid: u32,
}

impl Held {
    /// The locks that the environment names; a value that is none of ours names none.
    pub(crate) fn from_environment() -> Self {
        let value = std::env::var(VARIABLE).unwrap_or_default();
        Self(serde_json::from_str(&value).unwrap_or_default())
    }

    /// Whether one of them is this lock, if it is still held.
    pub(crate) fn names(&self, store: &str, name: &LockName) -> bool {
        self.entries_of(store, name).next().is_some()
    }

    /// Whether the lock's holder is a `lockkit run` around this process. A holder that cannot be told apart counts as
    /// one.
    pub(crate) fn is_holder(&self, store: &str, name: &LockName, inspection: &Inspection) -> bool {
        let Some(holder) = &inspection.holder else { return false };
        let Some(metadata) = &holder.metadata else { return true };
        self.entries_of(store, name).any(|entry| (&entry.host, entry.pid) == (&metadata.host, metadata.pid))
    }

    /// The variable's value for the command of this process, which holds the lock.
    pub(crate) fn and(mut self, store: String, name: &LockName) -> String {
        let Metadata { host, pid, .. } = Metadata::of_this_process(None);
        self.0.push(Entry { store, name: name.to_string(), host, pid });
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    fn entries_of(&self, store: &str, name: &LockName) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(move |entry| entry.store == store && entry.name == name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use lockkit::backend::Contender;

    use super::*;

    fn held_by(pid: u32) -> Inspection {
        let metadata = Metadata { pid, ..Metadata::of_this_process(None) };
        let holder = Contender { entry: "k".into(), token: None, metadata: Some(metadata) };
        Inspection { holder: Some(holder), waiters: Vec::new() }
    }

    #[test]
    fn an_enclosing_lock_counts_while_it_is_held_by_the_same_process() {
        let (name, other) = (LockName::new("a\n\"b\"").unwrap(), LockName::new("b").unwrap());
        let value = Held::default().and("file:///x".into(), &name);
        let held = Held(serde_json::from_str(&value).unwrap());
        assert!(held.names("file:///x", &name));
        assert!(!held.names("file:///y", &name) && !held.names("file:///x", &other));
        assert!(held.is_holder("file:///x", &name, &held_by(std::process::id())));
        assert!(!held.is_holder("file:///x", &name, &held_by(1)), "somebody else holds it by now");
        assert!(!held.is_holder("file:///x", &name, &Inspection::default()), "nobody holds it by now");
    }
}
