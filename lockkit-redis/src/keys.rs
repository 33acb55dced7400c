//! The keys and channels in the store.
//!
//! ```text
//! PREFIX NAME                        the lock, as every library has it that locks with SET NX: KEY
//! lockkit:{KEY}:fence                the token counter: the highest token so far, and who was granted it
//! lockkit:{KEY}:queue                the waiting claims, in order of arrival
//! lockkit:{KEY}:deadlines            when each waiter lapses unless its client extends it, and its metadata
//! lockkit:{KEY}:record               the record of the lock, which only its holder writes
//! lockkit:client:CLIENT              the channel that notifies a client that its claim is next, or its hold broken
//! lockkit:leader:{KEY}               the channel that notifies observers of the lock's leader
//! ```
//!
//! A cluster keeps keys with the same text in braces (a hash tag) on the same server. If KEY has such a tag itself, the
//! side keys share it: `lockkit::KEY:fence`, `lockkit:leader::KEY`. Encoded names contain neither braces nor colons.

use std::fmt::Write;

use lockkit_core::{
    Error, ErrorKind, FencingToken, LockName, Result, backend::ClaimId, limits::LOCK_NAME_BYTES_MAX,
};

/// How a lock name becomes a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Names {
    /// Percent-encoded: any two names are independent of each other. The default.
    #[default]
    Encoded,
    /// As it is, to share locks with other libraries that lock with `SET key value NX PX ttl` and release by deleting
    /// the key. They poll, so waiters of lockkit poll too instead of queueing, see [`Queue::None`](crate::Queue::None).
    ///
    /// These libraries are excluded correctly, but cannot share a lock in practice:
    ///
    /// * Redisson, whose lock is a hash: neither enters while the other holds the lock, but Redisson's `lock()` fails
    ///   with WRONGTYPE instead of waiting.
    /// * python-redis-lock without `expire`: its waiter waits for ever for a signal that only its own library sends.
    ///   With `expire` it checks again after that time.
    ///
    /// Names that begin with `lockkit:` are refused. On a cluster, so are names whose side keys cannot be on their
    /// server.
    Raw,
}

/// Percent-encoding turns one byte into three at most.
const ENCODED_BYTES_MAX: usize = 3 * LOCK_NAME_BYTES_MAX;

/// The prefix of all keys except the locks themselves.
pub(crate) const SIDE_KEY_PREFIX: &str = "lockkit:";

/// The prefix of the channel of a client.
pub(crate) const CHANNEL: &str = "lockkit:client:";

/// The prefix of the channel for the observers of a leader.
const LEADER_CHANNEL: &str = "lockkit:leader:";

/// The layout of the keys of one configuration.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: String,
    names: Names,
    /// Whether the keys are on a cluster, where all keys of a lock must be on the same server.
    on_cluster: bool,
}

impl Layout {
    pub(crate) fn new(prefix: &str, names: Names, on_cluster: bool) -> Self {
        Self { prefix: prefix.to_owned(), names, on_cluster }
    }

    pub(crate) fn on_cluster(&self) -> bool {
        self.on_cluster
    }

    /// Returns the keys of a lock.
    pub(crate) fn keys(&self, name: &LockName) -> Result<LockKeys> {
        let lock = match self.names {
            Names::Encoded => format!("{}{}", self.prefix, name.encode(ENCODED_BYTES_MAX)),
            Names::Raw => format!("{}{}", self.prefix, name.as_str()),
        };
        let refused =
            |why| Err(Error::new(ErrorKind::InvalidName, "claim").with_lock(name).with_message(why));
        if lock.starts_with(SIDE_KEY_PREFIX) {
            return refused("overlaps with the side keys of locks, `lockkit:`");
        }
        if self.on_cluster && tag(&lock).is_none() && lock.contains('}') {
            return refused(
                "a cluster could not keep this lock's other keys on the same server, because of the `}` in its key: use \
                 a name and a prefix without braces, or encoded names",
            );
        }
        let prefix = same_slot_prefix(SIDE_KEY_PREFIX, &lock);
        let [token_counter, queue, lapses] =
            [":fence", ":queue", ":deadlines"].map(|what| [&*prefix, what].concat());
        Ok(LockKeys([lock, token_counter, queue, lapses]))
    }
}

/// What a listing asks for, and how it reads the keys that it finds.
impl Layout {
    /// Returns whether a lock's key can be distinguished from other keys.
    pub(crate) fn tells_locks_apart(&self) -> bool {
        self.names == Names::Encoded
    }

    /// Returns what the keys of all locks begin with whose names begin with `prefix`.
    pub(crate) fn beginning(&self, prefix: &str) -> String {
        format!("{}{}", self.prefix, LockName::encode_prefix(prefix))
    }

    /// Returns what encloses the rest of a lock's key, which begins so, in the key of its queue.
    pub(crate) fn queue_ends(&self, beginning: &str) -> (String, &'static str) {
        // Encoded names contain no braces, so a hash tag is in the prefix.
        match tag(&self.prefix) {
            Some(_) => (format!("{SIDE_KEY_PREFIX}:{beginning}"), ":queue"),
            None => (format!("{SIDE_KEY_PREFIX}{{{beginning}"), "}:queue"),
        }
    }

    /// Returns the lock that has this key.
    pub(crate) fn lock_of_key(&self, key: &str) -> Option<LockName> {
        LockName::decode(key.strip_prefix(&self.prefix)?)
    }

    /// Returns the lock that has this queue.
    pub(crate) fn lock_of_queue(&self, queue: &str) -> Option<LockName> {
        let (start, end) = self.queue_ends(&self.prefix);
        LockName::decode(queue.strip_prefix(&start)?.strip_suffix(end)?)
    }
}

/// Returns a side key of a lock.
fn side_key(lock: &str, what: &str) -> String {
    [&*same_slot_prefix(SIDE_KEY_PREFIX, lock), ":", what].concat()
}

/// Returns the start of keys and channels that a cluster keeps on the same server as this lock.
fn same_slot_prefix(prefix: &str, lock: &str) -> String {
    match tag(lock) {
        Some(_) => [prefix, ":", lock].concat(),
        None => [prefix, "{", lock, "}"].concat(),
    }
}

/// Returns the hash tag of a key, which decides on its server: the first text in braces, unless it is empty.
pub(crate) fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

/// The keys of one lock that scripts about a claim name, in the order in which they take them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKeys([String; 4]);

impl LockKeys {
    /// Returns the keys that scripts about a claim name.
    pub(crate) fn of_claim(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn lock(&self) -> &str {
        &self.0[0]
    }

    pub(crate) fn token_counter(&self) -> &str {
        &self.0[1]
    }

    pub(crate) fn queue(&self) -> &str {
        &self.0[2]
    }

    /// Returns the key that says when each waiter lapses.
    pub(crate) fn lapses(&self) -> &str {
        &self.0[3]
    }

    pub(crate) fn record(&self) -> String {
        side_key(self.lock(), "record")
    }

    /// Returns the channel for the observers of the leader.
    pub(crate) fn leader_channel(&self) -> String {
        same_slot_prefix(LEADER_CHANNEL, self.lock())
    }
}

/// Room for the longest value: 32 hexadecimal digits, a colon, and a token.
const VALUE_BYTES: usize = 32 + 1 + 20;

/// Returns the value of a lock that this claim holds.
pub(crate) fn value(claim: ClaimId, token: FencingToken) -> String {
    let mut value = String::with_capacity(VALUE_BYTES);
    // Text is always written.
    let _ = write!(value, "{claim}:{}", token.get());
    value
}

/// Parses the value of a lock that a lockkit client holds: its claim and token.
pub(crate) fn parse_value(value: &str) -> Option<(ClaimId, u64)> {
    let (claim, digits) = value.split_once(':')?;
    let token: u64 = digits.parse().ok()?;
    // Parsing also accepts what no lockkit client writes, such as +7 and 007.
    (token.to_string() == digits).then_some((ClaimId::parse(claim)?, token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn keys(prefix: &str, names: Names, text: &str) -> Result<LockKeys> {
        Layout::new(prefix, names, true).keys(&name(text))
    }

    fn every_key(keys: &LockKeys) -> Vec<String> {
        keys.0.iter().cloned().chain([keys.record()]).collect()
    }

    #[test]
    fn keys_are_as_documented() {
        let found = keys("app:", Names::Encoded, "orders/42").unwrap();
        assert_eq!(found.lock(), "app:orders%2F42");
        assert_eq!(found.token_counter(), "lockkit:{app:orders%2F42}:fence");
        assert_eq!(found.lapses(), "lockkit:{app:orders%2F42}:deadlines");
        assert_eq!(found.record(), "lockkit:{app:orders%2F42}:record");
        assert_eq!(found.leader_channel(), "lockkit:leader:{app:orders%2F42}");
        let tagged = keys("", Names::Raw, "{user}:1").unwrap();
        assert_eq!((tagged.lock(), tagged.token_counter()), ("{user}:1", "lockkit::{user}:1:fence"));
        assert_eq!(tagged.leader_channel(), "lockkit:leader::{user}:1");
    }

    #[test]
    fn names_without_safe_keys_are_refused() {
        for text in ["lockkit:{x}:queue", "lockkit:client:0"] {
            assert_eq!(keys("", Names::Raw, text).unwrap_err().kind(), ErrorKind::InvalidName, "{text}");
            assert!(keys("", Names::Encoded, text).is_ok());
        }
        for text in ["a}b", "{}x", "}{x"] {
            assert_eq!(keys("", Names::Raw, text).unwrap_err().kind(), ErrorKind::InvalidName, "{text}");
            assert!(Layout::new("", Names::Raw, false).keys(&name(text)).is_ok());
        }
    }

    #[test]
    fn values_of_other_programs_are_not_parsed() {
        let claim = ClaimId::random();
        assert_eq!(parse_value(&value(claim, FencingToken::new(17))), Some((claim, 17)));
        for foreign in ["", "(hash)", "abc", ":17", &format!("{claim}")] {
            assert_eq!(parse_value(foreign), None, "{foreign}");
        }
        for token in ["", "x", "+17", "017", "18446744073709551616"] {
            assert_eq!(parse_value(&format!("{claim}:{token}")), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn locks_share_no_keys(
            one in "\\PC{1,20}|[ab{}:%\\x00]{1,8}",
            other in "\\PC{1,20}|[ab{}:%\\x00]{1,8}",
            raw in any::<bool>(),
        ) {
            prop_assume!(one != other);
            let layout = Layout::new("", if raw { Names::Raw } else { Names::Encoded }, false);
            if let (Ok(one), Ok(other)) = (layout.keys(&name(&one)), layout.keys(&name(&other))) {
                prop_assert_ne!(one.leader_channel(), other.leader_channel());
                let others = every_key(&other);
                for key in every_key(&one) {
                    prop_assert!(!others.contains(&key), "{key}");
                }
            }
        }

        #[test]
        fn lock_is_found_by_its_key_and_its_queue(
            text in "\\PC{1,20}|[ab{}:%.\\x00]{1,8}",
            prefix in "[a{}:.]{0,5}",
            length in 0_usize..9,
        ) {
            let layout = Layout::new(&prefix, Names::Encoded, false);
            let keys = layout.keys(&name(&text)).unwrap();
            prop_assert_eq!(layout.lock_of_key(keys.lock()), Some(name(&text)));
            prop_assert_eq!(layout.lock_of_queue(keys.queue()), Some(name(&text)));
            let beginning = layout.beginning(&text.chars().take(length).collect::<String>());
            let (start, end) = layout.queue_ends(&beginning);
            prop_assert!(keys.lock().starts_with(&beginning));
            prop_assert!(keys.queue().starts_with(&start) && keys.queue().ends_with(end));
            for side in every_key(&keys)[1..].iter().chain([&keys.leader_channel()]) {
                prop_assert_eq!(layout.lock_of_key(side), None);
            }
        }

        #[test]
        fn all_keys_of_a_lock_share_a_tag(text in "\\PC{1,20}|[ab{}:%\\x00]{1,8}", raw in any::<bool>()) {
            let names = if raw { Names::Raw } else { Names::Encoded };
            if let Ok(keys) = keys("", names, &text) {
                let of_lock = tag(keys.lock()).unwrap_or(keys.lock());
                for key in every_key(&keys)[1..].iter().chain([&keys.leader_channel()]) {
                    prop_assert_eq!(tag(key), Some(of_lock));
                }
            }
        }
    }
}
