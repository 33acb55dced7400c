//! Lock names and their encoding for store keys.

use std::{fmt, str::FromStr, sync::Arc};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result, limits::LOCK_NAME_BYTES_MAX};

/// The name of a lock: any non-empty UTF-8 text of at most [`LOCK_NAME_BYTES_MAX`] bytes.
///
/// Names that differ in one byte are different locks. Names form no hierarchy: `a` and `a/b` are unrelated. Cheap to
/// clone.
///
/// ```
/// use lockkit_core::LockName;
///
/// let name: LockName = "orders/42".parse()?;
/// assert_eq!(name.as_str(), "orders/42");
/// assert!("".parse::<LockName>().is_err());
/// # Ok::<(), lockkit_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockName(Arc<str>);

impl LockName {
    /// Parses a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`] if the text is empty or longer than [`LOCK_NAME_BYTES_MAX`].
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let invalid = |what: String| Error::new(ErrorKind::InvalidName, "parse lock name").with_message(what);
        if text.is_empty() {
            return Err(invalid("a lock name must not be empty".into()));
        }
        if text.len() > LOCK_NAME_BYTES_MAX {
            return Err(invalid(format!(
                "a lock name has at most {LOCK_NAME_BYTES_MAX} bytes, this one has {}",
                text.len()
            )));
        }
        Ok(Self(text.into()))
    }

    /// Returns the name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as a part of a key, path or file name of at most `bytes_max` bytes: percent-encoded, and if
    /// that is too long, cut and completed by the SHA-256 of the whole name.
    ///
    /// The encoding is injective (up to SHA-256 collisions): in a plain encoding two hexadecimal digits follow every
    /// `%`, and `%-` marks the start of a digest. The result is ASCII and not empty. It contains no separator of any
    /// store (`/ { } * ? [ ] \ :` and controls), and neither starts nor ends with a dot.
    ///
    /// # Panics
    ///
    /// If `bytes_max` is less than 66 bytes, the length of a digest with its mark: an error in a backend.
    pub fn encode(&self, bytes_max: usize) -> String {
        const DIGEST_MARK: &str = "%-";
        const DIGEST_BYTES: usize = 64;
        assert!(bytes_max >= DIGEST_MARK.len() + DIGEST_BYTES, "no room for a digest in {bytes_max} bytes");
        let plain = encode_dots(percent_encode(self.0.as_bytes(), ENCODED).to_string());
        if plain.len() <= bytes_max {
            return plain;
        }
        let digest: String =
            hmac_sha256::Hash::hash(self.0.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let room = bytes_max - DIGEST_MARK.len() - DIGEST_BYTES;
        // Never cut within an escape: `%4` + `%-` would still be unique, but not decodable.
        let cut = match plain[..room].rfind('%') {
            Some(escape) if escape + 3 > room => escape,
            _ => room,
        };
        format!("{}{DIGEST_MARK}{digest}", &plain[..cut])
    }

    /// Returns the name of which [`encode`](Self::encode) has made this text; `None` for a name that was cut, and for a
    /// text that `encode` never returns.
    pub fn decode(encoded: &str) -> Option<Self> {
        let name = Self::new(percent_decode_str(encoded).decode_utf8().ok()?).ok()?;
        (name.encode(usize::MAX) == encoded).then_some(name)
    }

    /// Returns what the encoded forms of all names that begin with `prefix` begin with; a name that was cut begins with it
    /// as far as it goes. Some other names may begin with it too: compare what [`decode`](Self::decode) returns.
    pub fn encode_prefix(prefix: &str) -> String {
        let encoded = percent_encode(prefix.as_bytes(), ENCODED).to_string();
        // A dot at either end of a name is encoded, and nobody knows yet where the name ends.
        match encoded.strip_prefix('.') {
            Some(_) => "%2E".to_owned() + encoded[1..].trim_end_matches('.'),
            None => encoded.trim_end_matches('.').to_owned(),
        }
    }
}

/// All characters except ASCII letters, digits and a few marks that are plain text in every store.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'@')
    .remove(b'+')
    .remove(b'=')
    .remove(b',');

/// Encodes a dot at either end: `.` and `..` are not valid names of nodes or files, and Windows drops trailing dots.
fn encode_dots(mut text: String) -> String {
    if text.ends_with('.') {
        text.replace_range(text.len() - 1.., "%2E");
    }
    if text.starts_with('.') {
        text.replace_range(..1, "%2E");
    }
    text
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<&str> for LockName {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<String> for LockName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> Self {
        name.as_str().to_owned()
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
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
    fn empty_and_too_long_names_are_refused_by_kind() {
        assert_eq!(LockName::new("").unwrap_err().kind(), ErrorKind::InvalidName);
        assert!(LockName::new("x".repeat(LOCK_NAME_BYTES_MAX)).is_ok());
        assert_eq!(
            LockName::new("x".repeat(LOCK_NAME_BYTES_MAX + 1)).unwrap_err().kind(),
            ErrorKind::InvalidName
        );
        let mebibyte = LockName::new("x".repeat(1 << 20)).unwrap_err();
        assert_eq!(mebibyte.kind(), ErrorKind::InvalidName);
        assert!(mebibyte.to_string().len() < 200, "the error does not carry the name");
    }

    #[test]
    fn special_characters_are_encoded() {
        assert_eq!(name("orders/42").encode(255), "orders%2F42");
        assert_eq!(name("..").encode(255), "%2E%2E");
        assert_eq!(name(".").encode(255), "%2E");
        assert_eq!(name("a.b").encode(255), "a.b");
        assert_eq!(name("{}").encode(255), "%7B%7D");
        assert_eq!(name("a\0b\n").encode(255), "a%00b%0A");
        assert_eq!(name("🔒").encode(255), "%F0%9F%94%92");
        assert_eq!(name("100%").encode(255), "100%25");
    }

    #[test]
    fn encoded_names_do_not_nest() {
        let encoded: Vec<String> = ["a", "a/b", "ab", "a\0"].map(|text| name(text).encode(255)).into();
        for one in &encoded {
            for other in encoded.iter().filter(|other| *other != one) {
                assert!(!other.starts_with(&format!("{one}/")), "{one:?} contains {other:?}");
            }
        }
    }

    #[test]
    fn cut_name_ends_in_its_digest_and_never_within_an_escape() {
        let long = name(&"🔒".repeat(200));
        for bytes_max in 66..120 {
            let encoded = long.encode(bytes_max);
            assert!(encoded.len() <= bytes_max);
            let (head, digest) = encoded.split_once("%-").unwrap();
            assert_eq!(digest.len(), 64);
            assert_eq!(head.len() % 3, 0, "{head}");
        }
    }

    #[test]
    fn only_what_encode_returns_is_decoded() {
        for plain in
            ["a", "a/b", ".", "..", "...", ".a.", "a.b", "%", "%2E", "ä", "🔒", " ", "a\0b", "con", "a%2Fb"]
        {
            let whole = name(plain);
            assert_eq!(LockName::decode(&whole.encode(usize::MAX)), Some(whole), "{plain:?}");
        }
        // Spelled otherwise than `encode` spells it, cut, or not UTF-8.
        let cut = name(&"x".repeat(200)).encode(100);
        for foreign in
            ["", "a/b", ".", "..", ".a", "a.", "%2e", "%61", "%", "%2", "%-", "a b", "ä", "%FF", "{a}", &cut]
        {
            assert_eq!(LockName::decode(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn dots_at_the_end_of_a_prefix_are_left_open() {
        for (prefix, encoded) in [
            ("", ""),
            ("a", "a"),
            ("a.", "a"),
            ("a..", "a"),
            ("a.b", "a.b"),
            (".", "%2E"),
            ("..", "%2E"),
            (".a.", "%2Ea"),
            ("a/", "a%2F"),
            ("ä", "%C3%A4"),
        ] {
            assert_eq!(LockName::encode_prefix(prefix), encoded, "{prefix:?}");
        }
    }

    #[test]
    fn cut_name_begins_with_its_prefix_as_far_as_it_goes() {
        let (prefix, cut) = ("orders/".repeat(20), name(&"orders/".repeat(30)).encode(100));
        let (kept, _digest) = cut.split_once("%-").unwrap();
        assert!(!kept.is_empty() && LockName::encode_prefix(&prefix).starts_with(kept), "{cut}");
    }

    proptest! {
        #[test]
        fn encoding_is_injective_and_safe(one in "\\PC{1,40}|[\\x00-\\x7f]{1,40}", other in "\\PC{1,40}|[\\x00-\\x7f]{1,40}") {
            let (a, b) = (name(&one).encode(80), name(&other).encode(80));
            prop_assert_eq!(one == other, a == b);
            prop_assert!(!a.is_empty() && a.len() <= 80);
            let safe = |byte: u8| byte.is_ascii_graphic() && !b"/{}*?[]\\:\"<>|".contains(&byte);
            prop_assert!(a.bytes().all(safe), "{}", a);
            prop_assert!(!a.starts_with('.') && !a.ends_with('.'));
            let whole = name(&one);
            prop_assert_eq!(LockName::decode(&whole.encode(usize::MAX)), Some(whole));
            if a.contains("%-") {
                prop_assert_eq!(LockName::decode(&a), None);
            }
        }

        #[test]
        fn encoded_names_begin_with_their_encoded_prefix(text in "[.a/]{1,12}|\\PC{1,20}", length in 0_usize..12) {
            let prefix: String = text.chars().take(length).collect();
            let (encoded, beginning) = (name(&text).encode(usize::MAX), LockName::encode_prefix(&prefix));
            prop_assert!(encoded.starts_with(&beginning), "{} {}", encoded, beginning);
        }
    }
}
