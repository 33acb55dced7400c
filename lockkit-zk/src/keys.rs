//! Where everything lies in the store.
//!
//! ```text
//! ROOT/NAME/_c_<uuid>-lock-<number>     one node per claim, ephemeral; the lowest number holds the lock (Form::Curator)
//! ROOT/NAME/lock-<number>               the same without an identity in its name (Form::Bare)
//! ROOT/NAME                             the lock is one ephemeral node (Form::Single)
//! ROOT/:clients/<session>               what a client that holds nothing proves its life on
//! ```
//!
//! Everything in `ROOT/NAME` that ends in a number counts as a contender, whichever program made it, so nothing but
//! claims may lie there. An encoded name holds neither `/` nor `:`.

use lockkit_core::{Error, ErrorKind, LockName, Result, backend::ClaimId};

/// What a claim looks like in the store. Contenders of every ordered form, and those of other programs, are always waited
/// for, so that clients of [`Curator`](Self::Curator) and [`Bare`](Self::Bare) share locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// `NAME/_c_<uuid>-lock-<number>`: excludes, and queues with, Curator's `InterProcessMutex` and everything built on
    /// it, ZooKeeper's own recipe, the Go clients, and kazoo where its `extra_lock_patterns` names `-lock-`. The default.
    #[default]
    Curator,
    /// `NAME/lock-<number>`: as before, but for clients that count only names that begin with `lock-`. Names come again
    /// when an operator deletes the directory, so nodes are looked at before they are deleted, as for [`Single`](Self::Single).
    Bare,
    /// `NAME` itself, one ephemeral node without a queue: for programs that lock by creating a node. **Unordered**: all
    /// who wait try again at once when it goes. A program of an ordered form meets an error, not the lock.
    ///
    /// ZooKeeper deletes a node by its name only, so a release looks first whose node it is. Should an operator delete
    /// the holder's node between that look and the deletion, the next holder's would go instead.
    Single,
}

impl Form {
    /// Whether another claim may get a node of the same name: always where the lock is one node, and where the number is all
    /// that tells nodes apart when their directory is made anew.
    pub(crate) fn names_recur(self) -> bool {
        self != Self::Curator
    }
}

/// Longest name of a node that is made of a lock's name, in bytes; a longer one is cut and completed by its digest. 500 of
/// them must fit into one request.
const NODE_NAME_BYTES_MAX: usize = 512;

/// The directory of the clients' own nodes, below the root.
const CLIENTS: &str = ":clients";

/// ZooKeeper's own directory.
const RESERVED: &str = "/zookeeper";

/// Where one configuration keeps its nodes, and what they look like.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
    pub(crate) form: Form,
}

impl Layout {
    /// `root` is empty, or begins with a slash and does not end with one.
    pub(crate) fn new(root: &str, form: Form) -> Self {
        Self { root: root.to_owned(), form }
    }

    /// The node of a lock: the directory of its queue, or the lock itself.
    pub(crate) fn lock(&self, name: &LockName) -> Result<String> {
        let path = format!("{}/{}", self.root, name.encode(NODE_NAME_BYTES_MAX));
        if path == RESERVED {
            let what = "is ZooKeeper's own directory; configure a root";
            return Err(Error::new(ErrorKind::InvalidName, "claim").with_lock(name).with_message(what));
        }
        Ok(path)
    }

    /// The directory of the clients' own nodes.
    pub(crate) fn clients(&self) -> String {
        format!("{}/{CLIENTS}", self.root)
    }

    /// The node of the client that has this session.
    pub(crate) fn client(&self, session: i64) -> String {
        format!("{}/{session:x}", self.clients())
    }
}

/// The name that a claim's node is created with; the server completes it.
pub(crate) fn node_prefix(form: Form, claim: ClaimId) -> String {
    match form {
        Form::Curator => format!("_c_{}-lock-", hyphenated(claim)),
        Form::Bare => "lock-".to_owned(),
        Form::Single => String::new(),
    }
}

/// What a claim's node begins with, so that it is found again where its name does not tell.
pub(crate) fn data_prefix(claim: ClaimId) -> String {
    format!("{{\"claim\":\"{claim}\",")
}

/// What a claim's node holds: its identity and who made it, as one JSON object.
pub(crate) fn data(claim: ClaimId, metadata: &str) -> String {
    format!("{}{}", data_prefix(claim), metadata.strip_prefix('{').unwrap_or("}"))
}

/// As Java writes a UUID.
fn hyphenated(claim: ClaimId) -> String {
    let hex = claim.to_string();
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| hex.get(range).unwrap_or_default());
    groups.join("-")
}

#[cfg(test)]
mod tests {
    use lockkit_core::Metadata;

    use super::*;
    use crate::sequence::sequence;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn nodes_look_as_documented() {
        let layout = Layout::new("/locks", Form::Curator);
        assert_eq!(layout.lock(&name("orders/42")).unwrap(), "/locks/orders%2F42");
        assert_eq!(layout.client(0x0100_00af), "/locks/:clients/10000af");
        let claim = ClaimId::parse("0a1b2c3d4e5f60718293a4b5c6d7e8f9").unwrap();
        assert_eq!(node_prefix(Form::Curator, claim), "_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-lock-");
        assert_eq!(sequence(&format!("{}0000000012", node_prefix(Form::Bare, claim))), Some(12));
    }

    #[test]
    fn the_servers_own_directory_is_no_lock() {
        let layout = Layout::new("", Form::Curator);
        assert_eq!(layout.lock(&name("zookeeper")).unwrap_err().kind(), ErrorKind::InvalidName);
        assert!(layout.lock(&name("zookeeper2")).is_ok());
        assert!(Layout::new("/locks", Form::Curator).lock(&name("zookeeper")).is_ok());
    }

    #[test]
    fn the_longest_name_has_room_in_a_node() {
        let path = Layout::new("", Form::Curator).lock(&name(&"🔒".repeat(256))).unwrap();
        assert!(path.len() <= 1 + NODE_NAME_BYTES_MAX);
    }

    #[test]
    fn data_is_metadata_that_begins_with_the_claim() {
        let (claim, metadata) = (ClaimId::random(), Metadata::of_this_process(Some("x")));
        let written = data(claim, &metadata.to_json());
        assert!(written.starts_with(&data_prefix(claim)));
        assert!(!written.starts_with(&data_prefix(ClaimId::random())));
        assert_eq!(Metadata::from_json(written.as_bytes()), Some(metadata));
    }
}
