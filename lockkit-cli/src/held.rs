//! The same lock nested inside itself is refused, not waited for: it would be waited for until the enclosing job ends,
//! which waits for this one.
//!
//! Every command finds the locks of the `lockkit run`s around it in LOCKKIT_HELD, each with host and process id of its
//! holder. An entry counts only while that process is the lock's holder in the store that is asked: the same name in
//! another store is another lock, whatever the store's URL looks like, and a daemon that a job has left behind keeps
//! the variable when the lock is long free.

use lockkit::{LockName, Metadata, backend::Inspection};
use serde::{Deserialize, Serialize};

/// The variable.
pub(crate) const VARIABLE: &str = "LOCKKIT_HELD";

/// The locks of the `lockkit run`s around this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Vec<Entry>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    host: String,
    pid: u32,
}

impl Held {
    /// The locks that the environment names; a value that is none of ours names none.
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

    /// Whether the lock's holder is a `lockkit run` around this process.
    pub(crate) fn is_holder_of(&self, name: &LockName, found: &Inspection) -> bool {
        let Some(holder) = found.holder.as_ref().and_then(|holder| holder.metadata.as_ref()) else {
            return false;
        };
        self.0.iter().any(|entry| {
            (entry.name.as_str(), &entry.host, entry.pid) == (name.as_str(), &holder.host, holder.pid)
        })
    }

    /// The variable's value for the command of this process, which holds the lock.
    pub(crate) fn and(mut self, name: &LockName) -> String {
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
    fn an_enclosing_lock_counts_while_it_is_held_by_the_same_process() {
        let (name, other) = (LockName::new("a\n\"b\"").unwrap(), LockName::new("b").unwrap());
        let held = Held::parse(&Held::default().and(&name));
        assert!(held.has(&name) && !held.has(&other));
        let me = std::process::id();
        assert!(held.is_holder_of(&name, &held_by(me)));
        assert!(!held.is_holder_of(&other, &held_by(me)), "a lock of the same process, but not this one");
        assert!(!held.is_holder_of(&name, &held_by(1)), "somebody else holds it by now");
        assert!(!held.is_holder_of(&name, &Inspection::default()), "nobody holds it by now");
    }

    #[test]
    fn a_value_that_is_none_of_ours_names_no_lock() {
        for value in ["", "yes", "{}", "[1]"] {
            assert!(Held::parse(value).0.is_empty(), "{value}");
        }
    }
}
