//! Where everything lies in the store.
//!
//! ```text
//! PREFIX NAME /<lease>-<claim>          one key per claim, with the client's lease; the oldest one holds the lock.
//!                                       Named after the first of the claims that used it, one after the other
//! PREFIX :clients/<lease>/mailbox       where releasing clients tell this one that a claim of it is next
//! PREFIX :clients/<lease>/epoch         written anew when a claim ends whose enqueue may still be on its way
//! ```
//!
//! Everything under `PREFIX NAME /` counts as a contender for every client of this queue, those of etcd's own Go
//! package included, so nothing but claims may ever lie there. An encoded name holds neither `/` nor `:`, so no two
//! queues and no queue and `:clients/` lie inside each other.

use std::sync::Arc;

use lockkit_core::{Error, ErrorKind, LockName, Result, backend::ClaimId, limits::LOCK_NAME_BYTES_MAX};

/// How a lock name becomes a part of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Percent-encoded: any two names are independent of each other. The default.
    #[default]
    Encoded,
    /// As it is, to share locks with other clients: the lock `x` is that of `concurrency.NewMutex(session, "x")` in
    /// Go and of `etcdctl lock x`. As there, the lock `a` also waits for everything that claims `a/b`. Names that
    /// overlap with the clients' own keys are refused.
    Raw,
}

/// An etcd lease id: positive, written as hexadecimal digits in keys.
pub(crate) type LeaseId = i64;

/// Percent-encoding makes three bytes of one at most.
const ENCODED_BYTES_MAX: usize = 3 * LOCK_NAME_BYTES_MAX;

/// Where one configuration keeps its keys.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: String,
    names: Names,
}

impl Layout {
    /// `prefix` is empty or ends with a slash.
    pub(crate) fn new(prefix: &str, names: Names) -> Self {
        Self { prefix: prefix.to_owned(), names }
    }

    /// The queue of a lock.
    pub(crate) fn queue(&self, name: &LockName) -> Result<Queue> {
        let queue = match self.names {
            Names::Encoded => format!("{}{}/", self.prefix, name.encode(ENCODED_BYTES_MAX)),
            Names::Raw => format!("{}{}/", self.prefix, name.as_str()),
        };
        let clients = self.clients();
        if queue.starts_with(&clients) || clients.starts_with(&queue) {
            return Err(Error::new(ErrorKind::InvalidName, "claim")
                .with_lock(name)
                .with_message(format!("overlaps with the clients' own keys {clients:?}")));
        }
        Ok(Queue(queue.into()))
    }

    /// The keys of the client that has this lease.
    pub(crate) fn client(&self, lease: LeaseId) -> ClientKeys {
        let folder = format!("{}{lease:x}/", self.clients());
        ClientKeys { mailbox: format!("{folder}mailbox"), epoch: format!("{folder}epoch"), folder }
    }

    fn clients(&self) -> String {
        format!("{}:clients/", self.prefix)
    }
}

/// The queue of one lock: the common beginning of its claims' keys, with the slash at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue(Arc<str>);

impl Queue {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A new key, named after this claim.
    pub(crate) fn key(&self, lease: LeaseId, claim: ClaimId) -> String {
        format!("{}{lease:x}-{claim}", self.0)
    }
}

/// Whether a lockkit client would write this key.
pub(crate) fn is_claim(key: &str) -> bool {
    parse_claim(key).is_some()
}

/// What [`Queue::key`] made a key of; `None` for what it would not have made.
pub(crate) fn parse_claim(key: &str) -> Option<(LeaseId, ClaimId)> {
    let (lease, claim) = key.rsplit_once('/')?.1.split_once('-')?;
    let id = LeaseId::from_str_radix(lease, 16).ok().filter(|id| *id > 0 && format!("{id:x}") == lease)?;
    Some((id, ClaimId::parse(claim)?))
}

/// The two keys that a client has beside its claims, in a folder that one watch covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientKeys {
    pub(crate) folder: String,
    pub(crate) mailbox: String,
    pub(crate) epoch: String,
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
        assert_eq!(key, format!("lockkit/orders%2F42/694d7c3f-{claim}"));
        assert!(is_claim(&key));
        assert_eq!(layout.client(0xaf).mailbox, "lockkit/:clients/af/mailbox");
        assert_eq!(layout.client(0xaf).epoch, "lockkit/:clients/af/epoch");
    }

    #[test]
    fn raw_names_are_those_of_other_clients() {
        let layout = Layout::new("", Names::Raw);
        assert_eq!(layout.queue(&name("/jobs/x")).unwrap().as_str(), "/jobs/x/");
        for overlapping in [":clients", ":clients/af", ":clients/"] {
            assert_eq!(layout.queue(&name(overlapping)).unwrap_err().kind(), ErrorKind::InvalidName);
        }
        assert!(layout.queue(&name(":client")).is_ok());
    }

    #[test]
    fn foreign_keys_are_no_claims() {
        for foreign in ["", "q/694d7c3f", "q/x-y", "q/694d7c3f-00", "694d7c3f", "q/694d7c3f-0123456789"] {
            assert!(!is_claim(foreign), "{foreign}");
        }
        let claim = ClaimId::random();
        for lease in ["+af", "0af", "AF", "0", ""] {
            assert!(!is_claim(&format!("q/{lease}-{claim}")), "{lease}");
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
            prop_assert!(!one.as_str().starts_with(&layout.clients()));
        }
    }
}
