//! Where everything lies in the store.
//!
//! ```text
//! PREFIX NAME                        the lock, as every library has it that locks with SET NX: KEY
//! lockkit:{KEY}:fence                the highest token so far
//! lockkit:{KEY}:queue                who waits, in order of arrival
//! lockkit:{KEY}:deadlines            until when each waiter counts as alive
//! lockkit:{KEY}:metadata             what holder and waiters say about themselves
//! lockkit:client:CLIENT              channel on which a client is told that it is next
//! ```
//!
//! A cluster keeps keys with the same text in braces on the same server. Where KEY has such a tag itself, the side keys
//! have it too, as `lockkit::KEY:fence`. Encoded names hold neither braces nor colons.

use lockkit_core::{Error, ErrorKind, LockName, Result, backend::ClaimId, limits::LOCK_NAME_BYTES_MAX};

/// How a lock name becomes a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Names {
    /// Percent-encoded: any two names are independent of each other. The default.
    #[default]
    Encoded,
    /// As it is, to share locks with other libraries that lock with `SET key value NX PX ttl` and release by deleting the
    /// key. They poll, so waiters of lockkit race with them instead of queueing, see [`Queue::None`](crate::Queue::None).
    ///
    /// Exclusion holds with these too, but they cannot share a lock for work:
    ///
    /// * Redisson, whose lock is a hash: neither enters while the other holds the lock, but Redisson's `lock()` fails with
    ///   WRONGTYPE instead of waiting.
    /// * python-redis-lock without `expire`: its waiter waits, for ever, for a signal that only its own library sends.
    ///   With `expire` it looks again after that time.
    ///
    /// Names that begin with `lockkit:` are refused, and on a cluster those that no other key can share a server with.
    Raw,
}

/// Percent-encoding makes three bytes of one at most.
const ENCODED_BYTES_MAX: usize = 3 * LOCK_NAME_BYTES_MAX;

/// What comes before everything beside the locks themselves.
const SIDE: &str = "lockkit:";

/// What comes before the name of a client in its channel.
pub(crate) const CHANNEL: &str = "lockkit:client:";

/// Where one configuration keeps its locks.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: String,
    names: Names,
    /// Whether all keys of a lock must lie on the same server of a cluster.
    on_cluster: bool,
}

impl Layout {
    pub(crate) fn new(prefix: &str, names: Names, on_cluster: bool) -> Self {
        Self { prefix: prefix.to_owned(), names, on_cluster }
    }

    pub(crate) fn on_cluster(&self) -> bool {
        self.on_cluster
    }

    /// The keys of a lock.
    pub(crate) fn keys(&self, name: &LockName) -> Result<LockKeys> {
        let lock = match self.names {
            Names::Encoded => format!("{}{}", self.prefix, name.encode(ENCODED_BYTES_MAX)),
            Names::Raw => format!("{}{}", self.prefix, name.as_str()),
        };
        let refused =
            |why| Err(Error::new(ErrorKind::InvalidName, "claim").with_lock(name).with_message(why));
        if lock.starts_with(SIDE) {
            return refused("overlaps with the keys that lie beside locks, `lockkit:`");
        }
        let base = match tag(&lock) {
            Some(_) => format!("{SIDE}:{lock}"),
            None if self.on_cluster && lock.contains('}') => {
                return refused("no other key can lie on the same server of a cluster");
            }
            None => format!("{SIDE}{{{lock}}}"),
        };
        let side = |what| format!("{base}:{what}");
        Ok(LockKeys([lock, side("fence"), side("queue"), side("deadlines"), side("metadata")]))
    }
}

/// The part of a key that decides about its server: the first text in braces, unless it is empty.
pub(crate) fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

/// The keys of one lock, in the order in which scripts get them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKeys([String; 5]);

impl LockKeys {
    pub(crate) fn all(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn lock(&self) -> &str {
        &self.0[0]
    }

    pub(crate) fn fence(&self) -> &str {
        &self.0[1]
    }

    pub(crate) fn metadata(&self) -> &str {
        &self.0[4]
    }

    pub(crate) fn queue(&self) -> &str {
        &self.0[2]
    }

    pub(crate) fn deadlines(&self) -> &str {
        &self.0[3]
    }
}

/// The claim and the token in the value of a lock that a lockkit client holds.
pub(crate) fn parse_value(value: &str) -> Option<(ClaimId, u64)> {
    let (claim, digits) = value.split_once(':')?;
    let token: u64 = digits.parse().ok()?;
    // It also reads what nobody of ours writes, such as +7 and 007.
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

    #[test]
    fn keys_look_as_documented() {
        let found = keys("app:", Names::Encoded, "orders/42").unwrap();
        assert_eq!(found.lock(), "app:orders%2F42");
        assert_eq!(found.all()[1], "lockkit:{app:orders%2F42}:fence");
        assert_eq!(found.deadlines(), "lockkit:{app:orders%2F42}:deadlines");
        let tagged = keys("", Names::Raw, "{user}:1").unwrap();
        assert_eq!((tagged.lock(), &*tagged.all()[1]), ("{user}:1", "lockkit::{user}:1:fence"));
    }

    #[test]
    fn names_that_the_layout_cannot_carry_are_refused() {
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
    fn values_of_others_are_not_ours() {
        let claim = ClaimId::random();
        assert_eq!(parse_value(&format!("{claim}:17")), Some((claim, 17)));
        for foreign in ["", "(hash)", "abc", ":17", &format!("{claim}")] {
            assert_eq!(parse_value(foreign), None, "{foreign}");
        }
        for token in ["", "x", "+17", "017", "18446744073709551616"] {
            assert_eq!(parse_value(&format!("{claim}:{token}")), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn no_key_of_one_lock_is_one_of_another(
            one in "\\PC{1,20}|[ab{}:%\\x00]{1,8}",
            other in "\\PC{1,20}|[ab{}:%\\x00]{1,8}",
            raw in any::<bool>(),
        ) {
            prop_assume!(one != other);
            let layout = Layout::new("", if raw { Names::Raw } else { Names::Encoded }, false);
            if let (Ok(one), Ok(other)) = (layout.keys(&name(&one)), layout.keys(&name(&other))) {
                for key in one.all() {
                    prop_assert!(!other.all().contains(key), "{key}");
                }
            }
        }

        #[test]
        fn all_keys_of_a_lock_share_a_tag(text in "\\PC{1,20}|[ab{}:%\\x00]{1,8}", raw in any::<bool>()) {
            let names = if raw { Names::Raw } else { Names::Encoded };
            if let Ok(keys) = keys("", names, &text) {
                let of_lock = tag(keys.lock()).unwrap_or(keys.lock());
                for key in &keys.all()[1..] {
                    prop_assert_eq!(tag(key), Some(of_lock));
                }
            }
        }
    }
}
