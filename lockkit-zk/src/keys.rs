//! Where everything is kept in the store.
//!
//! ```text
//! ROOT/NAME/_c_<uuid>-lock-<number>     ephemeral, one per claim; the lowest number holds the lock (Form::Curator)
//! ROOT/NAME/lock-<number>               the same without an identity in its name (Form::Bare)
//! ROOT/NAME                             the lock is one ephemeral node (Form::Single)
//! ROOT/:clients/<session>               the client's own node, which heartbeats check
//! ROOT/:records/NAME                    persistent, the record of a lock's name (Form::Curator)
//! ```
//!
//! Every node in `ROOT/NAME` whose name ends in a number counts as a contender, whichever program created it; so only
//! claims may be there. An encoded name has neither `/` nor `:`; a raw name is refused if it is `:clients`, `:records` or
//! more than one path element.
//!
//! Failure case: another program locks `/jobs/a:1`, and a client of this library with that root creates `/jobs/a%3A1`.
//! Both would hold the lock. So a configured root accepts only names that are spelled alike either way, unless the
//! configuration selects a spelling ([decision 0022](../../docs/decisions/0022-zookeeper-names-in-a-named-root.md)).

use lockkit_core::{
    Error, ErrorKind, LockName, Result,
    backend::{ClaimId, Powers},
};

use crate::node_data::ProposalForm;

/// How a lock's name becomes the name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Names {
    /// Percent-encoded: every name is valid, and different names never share a node.
    Encoded,
    /// Unchanged, to share locks with other programs: with the root `/jobs`, the lock `a:1` is that of Curator's
    /// `InterProcessMutex(client, "/jobs/a:1")`. Names that are not one valid path element are refused: those with `/`
    /// or a forbidden character, `.`, `..`, `:clients`, and `:records`.
    ///
    /// A candidate's node then holds the value that it proposes and nothing else, as that of Curator's `LeaderSelector`
    /// holds its id: each side's `getLeader()` shows the other's value. What another program has written into its
    /// holder's node (a client of Curator its address) is read as its proposal.
    Raw,
}

/// What a claim looks like in the store. Every client waits for contenders of all ordered forms and of other programs,
/// so clients of [`Curator`](Self::Curator) and [`Bare`](Self::Bare) share locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// `NAME/_c_<uuid>-lock-<number>`: shares queues with Curator's `InterProcessMutex` and what is built on it, the Go
    /// clients, and kazoo if its `extra_lock_patterns` names `-lock-` (kazoo also needs
    /// [`Parents::Persistent`](crate::Parents::Persistent)). The default.
    ///
    /// Curator's `InterProcessReadWriteLock` and a kazoo without that pattern do **not** wait for these nodes.
    /// `WriteLock`, the recipe in ZooKeeper's own source, does. But it can wait for ever by a bug of its own, with or
    /// without this library: it sets no watch if its predecessor vanishes between its list and its `exists`.
    #[default]
    Curator,
    /// `NAME/lock-<number>`: the same, for clients that count only names starting with `lock-`. Names recur when an
    /// operator deletes the directory, so nodes are read before they are deleted, as with [`Single`](Self::Single).
    Bare,
    /// `NAME` itself, one ephemeral node without a queue: for programs that lock by creating a node. **Unordered**:
    /// when the node is gone, all waiters try again at once. A program of an ordered form gets an error, not the lock.
    ///
    /// ZooKeeper deletes a node by its name only, so a release first reads whose node it is. If an operator deletes the
    /// holder's node between that read and the deletion, the next holder's node is deleted instead; also if an operator
    /// deletes the client's own node in `:clients` while a release is without an answer.
    Single,
}

impl Form {
    /// Returns whether another claim may get a node of the same name. That is so where the lock is one node; also where
    /// only the number distinguishes nodes, because a new directory restarts the numbers.
    pub(crate) fn names_recur(self) -> bool {
        self != Self::Curator
    }

    /// Returns what can be done besides locking. Where names recur, a node that exists proves no grant, and ZooKeeper
    /// can compare only the version of a node, not who has created it. In a queue they recur only with a new directory,
    /// which a version shows; so a hold can be broken there, but not where the lock is one node.
    pub(crate) fn powers(self) -> Powers {
        let mut powers = Powers::default();
        powers.list = true;
        powers.break_lock = self != Self::Single;
        powers.elections = !self.names_recur();
        powers.leader_watch = powers.elections;
        powers.records = !self.names_recur();
        powers.evidence = !self.names_recur();
        powers
    }
}

/// Longest node name made of a lock name, in bytes; a longer one is truncated and completed by its digest. 500 of them
/// must fit into one request.
const NODE_NAME_BYTES_MAX: usize = 512;

/// The directory of the clients' own nodes, below the root.
const CLIENTS: &str = ":clients";

/// The directory of the records, below the root.
const RECORDS: &str = ":records";

/// ZooKeeper's own directory.
const RESERVED: &str = "/zookeeper";

/// Where one configuration keeps its nodes, and their form.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
    /// `None`: only names that are spelled alike in both spellings.
    names: Option<Names>,
    pub(crate) form: Form,
}

impl Layout {
    /// Returns the layout below `root`, which is empty, or starts with a slash and does not end with one.
    pub(crate) fn new(root: &str, names: Option<Names>, form: Form) -> Self {
        Self { root: root.to_owned(), names, form }
    }

    /// Returns the path of a lock: the directory of its queue, or the lock node itself.
    pub(crate) fn lock(&self, name: &LockName) -> Result<String> {
        let refused =
            |why: String| Err(Error::new(ErrorKind::InvalidName, "claim").with_lock(name).with_message(why));
        let encoded = name.encode(NODE_NAME_BYTES_MAX);
        let node = match self.names {
            Some(Names::Encoded) => encoded,
            Some(Names::Raw)
                if [CLIENTS, RECORDS].contains(&name.as_str()) || !is_node_name(name.as_str()) =>
            {
                return refused(
                    "with names=raw, the name must be one valid element of a ZooKeeper path".to_owned(),
                );
            }
            Some(Names::Raw) => name.as_str().to_owned(),
            None if encoded == name.as_str() => encoded,
            None => {
                return refused(format!(
                    "its node could be {name:?} or {encoded:?}; configure names=raw for the first, to share the lock \
                     with other programs, or names=encoded for the second"
                ));
            }
        };
        let path = format!("{}/{node}", self.root);
        if path == RESERVED {
            return refused("its node would be ZooKeeper's own directory; configure a root".to_owned());
        }
        Ok(path)
    }

    /// Returns the directory of the locks.
    pub(crate) fn directory(&self) -> &str {
        if self.root.is_empty() { "/" } else { &self.root }
    }

    /// Returns the path of a child of that directory.
    pub(crate) fn node(&self, child: &str) -> String {
        format!("{}/{child}", self.root)
    }

    /// Returns whether a child of that directory may be a lock, of any program.
    pub(crate) fn is_lock(&self, child: &str) -> bool {
        ![CLIENTS, RECORDS].contains(&child) && self.node(child) != RESERVED
    }

    /// Returns the name of the lock with this node in that directory; `None` for a name that was cut, or that this
    /// configuration writes otherwise.
    pub(crate) fn name(&self, child: &str) -> Option<LockName> {
        let name = match self.names {
            Some(Names::Encoded) => LockName::decode(child),
            Some(Names::Raw) | None => LockName::new(child).ok(),
        };
        name.filter(|name| self.lock(name).is_ok_and(|path| path == self.node(child)))
    }

    /// Returns how candidates write what they propose.
    pub(crate) fn proposals(&self) -> ProposalForm {
        match (self.names, self.form) {
            (Some(Names::Raw), Form::Curator) => ProposalForm::Plain,
            // In the other forms the data identify the claim.
            _ => ProposalForm::Json,
        }
    }

    /// Returns the directory of the records.
    pub(crate) fn records(&self) -> String {
        format!("{}/{RECORDS}", self.root)
    }

    /// Returns the path of the record of a lock's name, spelled as the lock's own node.
    pub(crate) fn record(&self, name: &LockName) -> Result<String> {
        let lock = self.lock(name)?;
        let node = lock.strip_prefix(&self.root).unwrap_or(&lock);
        Ok(format!("{}{node}", self.records()))
    }

    /// Returns the directory of the clients' own nodes.
    pub(crate) fn clients(&self) -> String {
        format!("{}/{CLIENTS}", self.root)
    }

    /// Returns the path of the client's own node in this session.
    pub(crate) fn client(&self, session: i64) -> String {
        format!("{}/{session:x}", self.clients())
    }
}

/// Returns whether this is a valid ZooKeeper path element.
pub(crate) fn is_node_name(text: &str) -> bool {
    // Like the server, which checks UTF-16 units: no control characters, no surrogates (all characters beyond U+FFFF)
    // and no private characters.
    let is_refused = |c: char| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'.. | '/');
    !matches!(text, "" | "." | "..") && !text.contains(is_refused)
}

/// Returns the name that a claim's node is created with; the server completes it.
pub(crate) fn node_prefix(form: Form, claim: ClaimId) -> String {
    match form {
        Form::Curator => format!("_c_{}-lock-", hyphenated(claim)),
        Form::Bare => "lock-".to_owned(),
        Form::Single => String::new(),
    }
}

/// Returns whether a contender's name, of this library or of Curator, has an id that no other claim gets. Other names
/// recur where their directory was deleted and created again.
pub(crate) fn identifies_claim(entry: &str) -> bool {
    let id = entry.strip_prefix("_c_").and_then(|rest| rest.get(..ID_CHARS));
    id.is_some_and(|id| id.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && id.bytes().all(is_of_an_id))
}

/// Characters of an id in the form of a Java UUID.
const ID_CHARS: usize = 36;

fn is_of_an_id(byte: u8) -> bool {
    byte == b'-' || byte.is_ascii_hexdigit()
}

/// How the JSON data of a claim's node start.
pub(crate) const DATA_START: &str = "{\"claim\":\"";

/// Returns how a claim's data starts, which identifies the node where its name does not.
pub(crate) fn data_prefix(claim: ClaimId) -> String {
    format!("{DATA_START}{claim}\",")
}

/// Returns the data of a claim's node: the claim's id and its metadata, as one JSON object.
pub(crate) fn data(claim: ClaimId, metadata: &str) -> String {
    format!("{}{}", data_prefix(claim), metadata.strip_prefix('{').unwrap_or("}"))
}

/// Formats the id like a Java UUID.
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
    fn node_paths_are_as_documented() {
        let layout = Layout::new("/locks", Some(Names::Encoded), Form::Curator);
        assert_eq!(layout.lock(&name("orders/42")).unwrap(), "/locks/orders%2F42");
        assert_eq!(layout.client(0x0100_00af), "/locks/:clients/10000af");
        assert_eq!(layout.record(&name("orders/42")).unwrap(), "/locks/:records/orders%2F42");
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
    fn unset_spelling_accepts_only_names_that_need_no_encoding() {
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
        // Truncated, and completed by its digest.
        assert_eq!(spelled(None, &"x".repeat(NODE_NAME_BYTES_MAX + 1)), None);
        for text in ["a/b", ".", "..", ":clients", ":records", "\u{1}", "🔒"] {
            assert_eq!((spelled(None, text), spelled(Some(Names::Raw), text)), (None, None), "{text:?}");
        }
    }

    #[test]
    fn characters_that_the_server_refuses_are_in_no_node_name() {
        let refused =
            ['\0', '\u{1f}', '\u{7f}', '\u{9f}', '\u{e000}', '\u{f8ff}', '\u{fff0}', '\u{10000}', '/'];
        for (characters, is_valid) in
            [(&refused[..], false), (&[' ', '~', '\u{a0}', '\u{d7ff}', '\u{f900}', '\u{ffef}'], true)]
        {
            for character in characters {
                assert_eq!(is_node_name(&format!("a{character}b")), is_valid, "{character:?}");
            }
        }
    }

    #[test]
    fn name_is_read_back_from_its_node() {
        for (names, text) in [
            (Some(Names::Encoded), "orders/42"),
            (Some(Names::Encoded), ":clients"),
            (Some(Names::Raw), "a:1"),
            (None, "a-1"),
        ] {
            let layout = Layout::new("/jobs", names, Form::Curator);
            let path = layout.lock(&name(text)).unwrap();
            let node = path.strip_prefix("/jobs/").unwrap();
            assert_eq!((layout.name(node), layout.node(node)), (Some(name(text)), path.clone()), "{text}");
            assert!(layout.is_lock(node));
        }
        let cut = name(&"x".repeat(NODE_NAME_BYTES_MAX + 1)).encode(NODE_NAME_BYTES_MAX);
        for (names, node) in [(Some(Names::Encoded), "a:1"), (None, "a:1"), (Some(Names::Encoded), &cut)] {
            assert_eq!(Layout::new("/jobs", names, Form::Curator).name(node), None, "{names:?} {node}");
        }
        for names in [None, Some(Names::Encoded), Some(Names::Raw)] {
            let layout = Layout::new("", names, Form::Curator);
            for node in [":clients", ":records", "zookeeper"] {
                assert!(!layout.is_lock(node) && layout.name(node).is_none(), "{names:?} {node}");
            }
        }
    }

    #[test]
    fn only_names_with_an_id_identify_a_claim() {
        let own = format!("{}0000000012", node_prefix(Form::Curator, ClaimId::random()));
        assert!(identifies_claim(&own), "{own}");
        for entry in
            ["lock-0000000012", "_c_-lock-0000000012", "_c_x", &own[3..], &own.replace("_c_", "_c_x")]
        {
            assert!(!identifies_claim(entry), "{entry}");
        }
        // A name that somebody has made up.
        assert!(!identifies_claim("_c_xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx-lock-0000000012"));
    }

    #[test]
    fn longest_name_fits_into_a_node_name() {
        let path =
            Layout::new("", Some(Names::Encoded), Form::Curator).lock(&name(&"🔒".repeat(256))).unwrap();
        assert!(path.len() <= 1 + NODE_NAME_BYTES_MAX);
    }

    #[test]
    fn data_is_metadata_that_starts_with_the_claim() {
        let (claim, metadata) = (ClaimId::random(), Metadata::of_this_process(Some("x")));
        let written = data(claim, &metadata.to_json());
        assert!(written.starts_with(&data_prefix(claim)));
        assert!(!written.starts_with(&data_prefix(ClaimId::random())));
        assert_eq!(Metadata::from_json(written.as_bytes()), Some(metadata));
    }
}
