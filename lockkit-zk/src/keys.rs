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
//! claims may lie there. An encoded name holds neither `/` nor `:`; a raw name is refused where it would be `:clients` or
//! more than one element of a path.
//!
//! Failure case: another program locks `/jobs/a:1`, and a client of this library with that root writes `/jobs/a%3A1`. Both
//! would hold the lock. So a named root takes only names that are spelled alike either way, unless the configuration says
//! which spelling is meant ([decision 0040](../../docs/decisions/0040-zookeeper-names-in-a-named-root.md)).

use lockkit_core::{Error, ErrorKind, LockName, Result, backend::ClaimId};

/// How the name of a lock becomes the name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Names {
    /// Percent-encoded: every name is possible, and any two are independent of each other.
    Encoded,
    /// As it is, to share locks with other programs: with the root `/jobs`, the lock `a:1` is that of Curator's
    /// `InterProcessMutex(client, "/jobs/a:1")`. Names that ZooKeeper does not accept as one element of a path are refused:
    /// those with `/` or a forbidden character, `.`, `..`, and `:clients`.
    Raw,
}

/// What a claim looks like in the store. Contenders of every ordered form, and those of other programs, are always waited
/// for, so that clients of [`Curator`](Self::Curator) and [`Bare`](Self::Bare) share locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// `NAME/_c_<uuid>-lock-<number>`: excludes, and queues with, Curator's `InterProcessMutex` and what is built on it,
    /// the Go clients, and kazoo where its `extra_lock_patterns` names `-lock-` (kazoo also needs
    /// [`Parents::Persistent`](crate::Parents::Persistent)). The default.
    ///
    /// Curator's `InterProcessReadWriteLock` and a kazoo without that pattern do **not** wait for these nodes. `WriteLock`,
    /// the recipe in ZooKeeper's own source, does, but it can wait for ever by a bug of its own, with and without this
    /// library: it sets no watch when its predecessor goes between its list and its `exists`.
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
    /// `None`: only names that are spelled alike either way.
    names: Option<Names>,
    pub(crate) form: Form,
}

impl Layout {
    /// `root` is empty, or begins with a slash and does not end with one.
    pub(crate) fn new(root: &str, names: Option<Names>, form: Form) -> Self {
        Self { root: root.to_owned(), names, form }
    }

    /// The node of a lock: the directory of its queue, or the lock itself.
    pub(crate) fn lock(&self, name: &LockName) -> Result<String> {
        let refused =
            |why: String| Err(Error::new(ErrorKind::InvalidName, "claim").with_lock(name).with_message(why));
        let encoded = name.encode(NODE_NAME_BYTES_MAX);
        let node = match self.names {
            Some(Names::Encoded) => encoded,
            Some(Names::Raw) if name.as_str() == CLIENTS || !is_node_name(name.as_str()) => {
                return refused(
                    "with names=raw, a name is one element of a path that ZooKeeper takes".to_owned(),
                );
            }
            Some(Names::Raw) => name.as_str().to_owned(),
            None if encoded == name.as_str() => encoded,
            None => {
                return refused(format!(
                    "the node could be {name:?}, as other programs call it, or {encoded:?}; configure names=raw for \
                     the first, to share the lock with them, or names=encoded for the second"
                ));
            }
        };
        let path = format!("{}/{node}", self.root);
        if path == RESERVED {
            return refused("is ZooKeeper's own directory; configure a root".to_owned());
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

/// Whether ZooKeeper takes this as one element of a path.
pub(crate) fn is_node_name(text: &str) -> bool {
    // As the server, which looks at units of UTF-16: no control characters, no surrogates (which all characters beyond
    // U+FFFF consist of) and no private ones.
    let is_refused = |c: char| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'.. | '/');
    !matches!(text, "" | "." | "..") && !text.contains(is_refused)
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
        let layout = Layout::new("/locks", Some(Names::Encoded), Form::Curator);
        assert_eq!(layout.lock(&name("orders/42")).unwrap(), "/locks/orders%2F42");
        assert_eq!(layout.client(0x0100_00af), "/locks/:clients/10000af");
        let claim = ClaimId::parse("0a1b2c3d4e5f60718293a4b5c6d7e8f9").unwrap();
        assert_eq!(node_prefix(Form::Curator, claim), "_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-lock-");
        assert_eq!(sequence(&format!("{}0000000012", node_prefix(Form::Bare, claim))), Some(12));
    }

    #[test]
    fn the_servers_own_directory_is_no_lock() {
        for names in [None, Some(Names::Encoded), Some(Names::Raw)] {
            let layout = Layout::new("", names, Form::Curator);
            assert_eq!(layout.lock(&name("zookeeper")).unwrap_err().kind(), ErrorKind::InvalidName);
            assert!(layout.lock(&name("zookeeper2")).is_ok());
            assert!(Layout::new("/locks", names, Form::Curator).lock(&name("zookeeper")).is_ok());
        }
    }

    #[test]
    fn without_a_spelling_only_names_that_are_spelled_alike_are_taken() {
        let spelled = |names, text: &str| Layout::new("/jobs", names, Form::Curator).lock(&name(text)).ok();
        for text in ["a", "A-1_b.c~d@e+f=g,h"] {
            let path = Some(format!("/jobs/{text}"));
            for names in [None, Some(Names::Encoded), Some(Names::Raw)] {
                assert_eq!(spelled(names, text), path, "{names:?}");
            }
        }
        for (text, encoded) in [("a:1", "a%3A1"), ("a b", "a%20b"), ("50%", "50%25"), (".a", "%2Ea")] {
            assert_eq!(spelled(None, text), None, "{text}");
            assert_eq!(spelled(Some(Names::Encoded), text), Some(format!("/jobs/{encoded}")));
            assert_eq!(spelled(Some(Names::Raw), text), Some(format!("/jobs/{text}")));
        }
        // Cut, and completed by its digest.
        assert_eq!(spelled(None, &"x".repeat(NODE_NAME_BYTES_MAX + 1)), None);
        for text in ["a/b", ".", "..", ":clients", "\u{1}", "🔒"] {
            assert_eq!((spelled(None, text), spelled(Some(Names::Raw), text)), (None, None), "{text:?}");
        }
    }

    #[test]
    fn the_longest_name_has_room_in_a_node() {
        let path =
            Layout::new("", Some(Names::Encoded), Form::Curator).lock(&name(&"🔒".repeat(256))).unwrap();
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
