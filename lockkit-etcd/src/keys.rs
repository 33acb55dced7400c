//! The keys in the store.
//!
//! ```text
//! PREFIX NAME /<lease>-<n>-<claim>      one key per claim, with the client's lease; the oldest one holds the lock, and
//!                                       its create revision is the fencing token.
//!                                       Later claims of the client reuse it; it is named after the first one
//! PREFIX :clients/<lease>/mailbox       the client's handoff key: a releasing client writes here which claim is next,
//!                                       and who comes after it
//! PREFIX :clients/<lease>/epoch         the client's epoch key: bumped (put again) when a claim ends while copies of
//!                                       its enqueue may still be under way
//! PREFIX :clients/<lease>/broken        which hold of the client an operator has broken
//! PREFIX :records/NAME                  the record of a lock: a text that only its holder writes; NAME is always encoded
//! ```
//!
//! A claim's key contains what locates its client's handoff key: the lease, and the length `n` of the client's prefix,
//! which the key begins with. A releasing client cannot learn them otherwise. A read need not return the lease (etcd
//! 3.7 omits it when only keys are read, etcd #22209), and with raw names clients of different prefixes share a queue.
//!
//! Every key under `PREFIX NAME /` counts as a contender for all clients of the queue, including those of etcd's own Go
//! package. So only claims may lie there. An encoded name contains neither `/` nor `:`, so no queue lies inside another
//! one or inside `:clients/` or `:records/`.

use std::sync::Arc;

use lockkit_core::{
    Error, ErrorKind, LockName, Metadata, Result,
    backend::{Claim, ClaimId},
    limits::LOCK_NAME_BYTES_MAX,
};

use crate::forms::Shape;

/// How a lock name becomes a part of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Names {
    /// Percent-encoded: any two names are independent of each other. The default.
    #[default]
    Encoded,
    /// Unchanged, to share locks with other clients: the lock `x` is that of `concurrency.NewMutex(session, "x")` in Go
    /// and of `etcdctl lock x`. As there, the lock `a` also waits for all claims of `a/b`. Names that overlap with the
    /// clients' own keys or with records are rejected. A candidate of an election stores the value that it proposes and
    /// nothing else, as Go's `concurrency.Election` does.
    Raw,
}

/// An etcd lease id: positive, written as hexadecimal digits in keys.
pub(crate) type LeaseId = i64;

/// Percent-encoding turns one byte into at most three.
const ENCODED_BYTES_MAX: usize = 3 * LOCK_NAME_BYTES_MAX;

/// The prefix and the encoding of names of one configuration.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: String,
    names: Names,
    pub(crate) shape: Shape,
}

impl Layout {
    /// Returns the layout below `prefix`, which is empty or ends with a slash.
    pub(crate) fn new(prefix: &str, names: Names) -> Self {
        Self { prefix: prefix.to_owned(), names, shape: Shape::default() }
    }

    /// Sets the form of the locks.
    pub(crate) fn shaped(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn names(&self) -> Names {
        self.names
    }

    /// Returns the part of a key that a lock name becomes.
    pub(crate) fn part(&self, name: &LockName) -> String {
        match self.names {
            Names::Encoded => name.encode(ENCODED_BYTES_MAX).to_string(),
            Names::Raw => name.as_str().to_owned(),
        }
    }

    /// Returns the key that is named like the lock.
    pub(crate) fn path(&self, name: &LockName) -> String {
        format!("{}{}", self.prefix, self.part(name))
    }

    pub(crate) fn as_queue(&self, path: String) -> QueuePath {
        QueuePath { path: path.into(), prefix_bytes: self.prefix.len() }
    }

    /// Returns the queue of a lock.
    pub(crate) fn queue(&self, name: &LockName) -> Result<QueuePath> {
        let queue = self.path(name) + "/";
        let overlaps = |folder: &String| queue.starts_with(folder) || folder.starts_with(&queue);
        if let Some(folder) = self.own_folders().into_iter().find(overlaps) {
            return Err(Error::new(ErrorKind::InvalidName, "claim")
                .with_lock(name)
                .with_message(format!("overlaps with lockkit's own keys {folder:?}")));
        }
        Ok(self.as_queue(queue))
    }

    /// Returns the keys of the client itself, which has this lease.
    pub(crate) fn client(&self, lease: LeaseId) -> ClientKeys {
        ClientKeys::new(&self.prefix, lease)
    }

    /// Returns the key of a lock's record.
    pub(crate) fn record(&self, name: &LockName) -> String {
        format!("{}{}", records(&self.prefix), name.encode(ENCODED_BYTES_MAX))
    }

    /// Returns the value that a claim creates its key with.
    pub(crate) fn claim_value(&self, claim: &Claim) -> String {
        match (&claim.metadata().proposal, self.names) {
            (Some(_), Names::Raw) => self.entry_value(claim.metadata()),
            _ => claim.metadata_json(),
        }
    }

    /// Returns the value of a claim's key with this metadata.
    pub(crate) fn entry_value(&self, metadata: &Metadata) -> String {
        match (&metadata.proposal, self.names) {
            (Some(proposal), Names::Raw) => proposal.value.clone(),
            _ => metadata.to_json(),
        }
    }

    /// Returns whether the values of other programs in a queue are proposals.
    pub(crate) fn shares_elections(&self) -> bool {
        self.names == Names::Raw
    }

    /// Returns the folders of keys that belong to no lock.
    pub(crate) fn own_folders(&self) -> [String; 2] {
        [clients(&self.prefix), records(&self.prefix)]
    }
}

/// Returns the common beginning of the keys that all clients of this prefix have for themselves.
fn clients(prefix: &str) -> String {
    format!("{prefix}:clients/")
}

/// Returns the common beginning of the records of all locks of this prefix.
fn records(prefix: &str) -> String {
    format!("{prefix}:records/")
}

/// The queue of one lock: the common beginning of its claims' keys, including the slash at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueuePath {
    path: Arc<str>,
    /// How many bytes of the path are this client's prefix.
    prefix_bytes: usize,
}

impl QueuePath {
    pub(crate) fn as_str(&self) -> &str {
        &self.path
    }

    /// Returns a new key, named after this claim.
    pub(crate) fn key(&self, lease: LeaseId, claim: ClaimId) -> String {
        format!("{}{lease:x}-{}-{claim}", self.path, self.prefix_bytes)
    }
}

/// The parts of a key that [`QueuePath::key`] has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimKey<'a> {
    pub(crate) queue: &'a str,
    /// The prefix of its client.
    pub(crate) prefix: &'a str,
    pub(crate) lease: LeaseId,
    pub(crate) claim: ClaimId,
}

impl<'a> ClaimKey<'a> {
    /// Parses a key; `None` if [`QueuePath::key`] cannot have made it.
    pub(crate) fn parse(key: &'a str) -> Option<Self> {
        let (queue, entry) = key.split_at(key.rfind('/')? + 1);
        let (lease, rest) = entry.split_once('-')?;
        let (prefix_bytes, claim) = rest.split_once('-')?;
        let id = LeaseId::from_str_radix(lease, 16).ok();
        let id = id.filter(|id| *id > 0 && format!("{id:x}") == lease)?;
        let bytes = prefix_bytes.parse::<usize>().ok();
        let prefix = queue.get(..bytes.filter(|bytes| bytes.to_string() == prefix_bytes)?)?;
        let is_prefix = prefix != queue && (prefix.is_empty() || prefix.ends_with('/'));
        is_prefix.then_some(Self { queue, prefix, lease: id, claim: ClaimId::parse(claim)? })
    }

    /// Returns the keys of its client itself.
    pub(crate) fn client(&self) -> ClientKeys {
        ClientKeys::new(self.prefix, self.lease)
    }
}

/// A client's lease and its own keys, in a folder that one watch covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientKeys {
    pub(crate) lease: LeaseId,
    pub(crate) folder: String,
    pub(crate) handoff_key: String,
    pub(crate) epoch: String,
    /// Written by who breaks a hold of the client.
    pub(crate) broken: String,
}

impl ClientKeys {
    fn new(prefix: &str, lease: LeaseId) -> Self {
        let folder = format!("{}{lease:x}/", clients(prefix));
        let key = |name| format!("{folder}{name}");
        Self { lease, handoff_key: key("mailbox"), epoch: key("epoch"), broken: key("broken"), folder }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn keys_look_as_documented() {
        let layout = Layout::new("lockkit/", Names::Encoded);
        let claim = ClaimId::random();
        let queue = layout.queue(&name("orders/42")).unwrap();
        let key = queue.key(0x694d_7c3f, claim);
        assert_eq!(key, format!("lockkit/orders%2F42/694d7c3f-8-{claim}"));
        assert_eq!(layout.client(0xaf).handoff_key, "lockkit/:clients/af/mailbox");
        assert_eq!(layout.client(0xaf).epoch, "lockkit/:clients/af/epoch");
    }

    #[test]
    fn raw_names_match_those_of_other_clients() {
        let layout = Layout::new("", Names::Raw);
        assert_eq!(layout.queue(&name("/jobs/x")).unwrap().as_str(), "/jobs/x/");
        for overlapping in [":clients", ":clients/af", ":clients/", ":records", ":records/x"] {
            assert_eq!(layout.queue(&name(overlapping)).unwrap_err().kind(), ErrorKind::InvalidName);
        }
        assert!(layout.queue(&name(":client")).is_ok());
        assert_eq!(layout.record(&name("/jobs/x")), ":records/%2Fjobs%2Fx");
    }

    #[test]
    fn claim_key_names_the_handoff_key_of_its_client() {
        let same_queue = [
            (Layout::new("", Names::Raw), "a/b/x", ":clients/"),
            (Layout::new("a/", Names::Raw), "b/x", "a/:clients/"),
            (Layout::new("a/b/", Names::Encoded), "x", "a/b/:clients/"),
        ];
        for (layout, lock, clients) in same_queue {
            let (queue, claim) = (layout.queue(&name(lock)).unwrap(), ClaimId::random());
            assert_eq!(queue.as_str(), "a/b/x/");
            let key = queue.key(0xaf, claim);
            let parsed = ClaimKey::parse(&key).unwrap();
            assert_eq!((parsed.queue, parsed.lease, parsed.claim), (queue.as_str(), 0xaf, claim));
            assert_eq!(parsed.client(), layout.client(0xaf));
            assert_eq!(parsed.client().handoff_key, format!("{clients}af/mailbox"));
        }
    }

    #[test]
    fn foreign_keys_are_not_taken_for_claims() {
        for foreign in ["", "q/694d7c3f", "q/x-y", "q/694d7c3f-00", "694d7c3f", "q/694d7c3f-0-0123456789"] {
            assert_eq!(ClaimKey::parse(foreign), None, "{foreign}");
        }
        let claim = ClaimId::random();
        assert!(ClaimKey::parse(&format!("é/q/af-3-{claim}")).is_some());
        for entry in
            ["+af-0", "0af-0", "AF-0", "0-0", "-0", "af", "af-", "af-+3", "af-03", "af-1", "af-4", "af-5"]
        {
            assert_eq!(ClaimKey::parse(&format!("é/q/{entry}-{claim}")), None, "{entry}");
        }
    }

    proptest! {
        #[test]
        fn no_queue_lies_inside_another(
            one in "\\PC{1,20}|[a/:%\\x00]{1,8}",
            other in "\\PC{1,20}|[a/:%\\x00]{1,8}",
        ) {
            prop_assume!(one != other);
            let layout = Layout::new("lockkit/", Names::Encoded);
            let (one, other) = (layout.queue(&name(&one)).unwrap(), layout.queue(&name(&other)).unwrap());
            prop_assert!(!one.as_str().starts_with(other.as_str()));
            prop_assert!(!layout.client(7).folder.starts_with(one.as_str()));
            for folder in [clients("lockkit/"), records("lockkit/")] {
                prop_assert!(!one.as_str().starts_with(&folder) && !folder.starts_with(one.as_str()));
            }
        }
    }
}
