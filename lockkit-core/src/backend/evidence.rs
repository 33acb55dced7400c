//! What proves a grant inside the store.

/// What a transaction or script of the user's own can compare to prove a grant, where the data live in the same store
/// as the lock.
///
/// The comparison fails from the moment at which the grant's entry is gone, so before any later grant: a write that
/// carries it cannot be applied after a newer holder exists, even if the newer holder has written nothing yet.
///
/// Each variant names one kind of comparison; the backend's crate has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// A key exists and was created at this revision (etcd: compare the key's create revision).
    #[non_exhaustive]
    CreateRevision {
        /// The key.
        key: String,
        /// Its create revision.
        revision: i64,
    },
    /// A node exists; its path is used for no other claim (ZooKeeper: a check of any version in a multi).
    #[non_exhaustive]
    NodeExists {
        /// The path below the connection's chroot, if it has one.
        path: String,
        /// The id of the transaction that created it.
        czxid: i64,
    },
    /// A key has this value (Redis: compare it in a script). The value also releases the lock, so it is not printed.
    #[non_exhaustive]
    KeyValue {
        /// The key.
        key: String,
        /// Its value.
        value: SecretValue,
    },
}

/// A value that must not be printed; `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(String);

impl SecretValue {
    /// Returns the value, to be compared in the store.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl Evidence {
    /// Creates the evidence that a key was created at this revision.
    pub fn create_revision(key: impl Into<String>, revision: i64) -> Self {
        Self::CreateRevision { key: key.into(), revision }
    }

    /// Creates the evidence that a node exists.
    pub fn node_exists(path: impl Into<String>, czxid: i64) -> Self {
        Self::NodeExists { path: path.into(), czxid }
    }

    /// Creates the evidence that a key has this value.
    pub fn key_value(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self::KeyValue { key: key.into(), value: SecretValue(value.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_releases_the_lock_is_not_printed() {
        let evidence = Evidence::key_value("app:x", "s3cret:7");
        assert!(!format!("{evidence:?}").contains("s3cret"), "{evidence:?}");
        assert!(matches!(evidence, Evidence::KeyValue { value, .. } if value.expose() == "s3cret:7"));
    }
}
