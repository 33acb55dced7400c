//! File names, and the record of the last token. No I/O.

use std::{fmt::Write, str};

use lockkit_core::LockName;

/// Longest file name without its extension, in bytes: 255 on nearly every file system.
const STEM_BYTES_MAX: usize = 255 - ".holder".len();

const LOCK: &str = ".lock";

/// Name of the file whose file lock is the lock.
pub(crate) fn lock_file(name: &LockName) -> String {
    stem(name) + LOCK
}

/// Name of the file that shows the holder.
pub(crate) fn holder_file(name: &LockName) -> String {
    holder_of(&stem(name))
}

/// The same for the stem of the lock's files.
pub(crate) fn holder_of(stem: &str) -> String {
    format!("{stem}.holder")
}

/// Returns the stem of a lock file's name; `None` for any other file.
pub(crate) fn stem_of_lock_file(file: &str) -> Option<&str> {
    file.strip_suffix(LOCK).filter(|stem| !stem.is_empty() && !stem.starts_with('.'))
}

/// Returns the name of the lock with this stem; `None` for a name that was cut, and for a foreign file.
pub(crate) fn name(stem: &str) -> Option<LockName> {
    LockName::decode(&unescape(stem)).filter(|name| self::stem(name) == stem)
}

/// Whether the lock with this stem may have a name that begins with `prefix`.
pub(crate) fn may_begin_with(stem: &str, prefix: &str) -> bool {
    if let Some(name) = name(stem) {
        return name.as_str().starts_with(prefix);
    }
    let (encoded, known) = (LockName::encode_prefix(prefix), unescape(stem));
    let known = known.split_once("%-").map_or(known.as_str(), |(kept, _digest)| kept);
    known.starts_with(&encoded) || encoded.starts_with(known)
}

/// Name of the file that keeps the record of this name.
pub(crate) fn record_file(name: &LockName) -> String {
    stem(name) + ".record"
}

/// The encoded name, made safe for file systems that do not distinguish `A` and `a` (macOS, Windows, FAT) and for those
/// where `con` and the like are devices. It is the same on every system.
///
/// Injective, because [`LockName::encode`] never escapes a letter.
fn stem(name: &LockName) -> String {
    let long = escape(&name.encode(STEM_BYTES_MAX));
    if long.len() <= STEM_BYTES_MAX {
        return long;
    }
    // Escaping at most triples a name, so a third of the length always fits. A name that fits into a third was short
    // enough above, so `encode` always ends this one with a digest.
    escape(&name.encode(STEM_BYTES_MAX / 3))
}

/// Escapes upper-case letters, except inside of escapes, and the first letter of a device name.
fn escape(encoded: &str) -> String {
    let mut text = String::with_capacity(encoded.len());
    let mut in_escape = 0;
    for (position, letter) in encoded.char_indices() {
        if letter == '%' {
            in_escape = 3;
        }
        let escaped = in_escape == 0 && letter.is_ascii_uppercase() || position == 0 && is_device(encoded);
        if escaped {
            let _ = write!(text, "%{:02X}", u32::from(letter));
        } else {
            text.push(letter);
        }
        in_escape = usize::saturating_sub(in_escape, 1);
    }
    text
}

/// Reverts [`escape`]: unescapes every letter, which [`LockName::encode`] never escapes.
fn unescape(stem: &str) -> String {
    let mut parts = stem.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let letter = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match letter.filter(u8::is_ascii_alphabetic) {
            Some(letter) => text.extend([char::from(letter)].into_iter().chain(part[2..].chars())),
            None => text.extend(["%", part]),
        }
    }
    text
}

/// Returns whether Windows treats this file name as a device, with or without an extension.
fn is_device(encoded: &str) -> bool {
    let stem = encoded.split('.').next().unwrap_or_default();
    match stem.as_bytes() {
        b"con" | b"prn" | b"aux" | b"nul" => true,
        [b'c', b'o', b'm', digit] | [b'l', b'p', b't', digit] => digit.is_ascii_digit(),
        _ => false,
    }
}

/// Length of the record of the last token, in bytes. A disk sector of 512 bytes is written whole or not at all, so a
/// power failure leaves the old record or the new one.
pub(crate) const RECORD_BYTES: usize = 46;

/// The record of the last token: one line of text of fixed length that ends with a checksum.
pub(crate) fn record(token: u64) -> String {
    let text = format!("lockkit-token-1 {token:020} ");
    let checksum = crc32fast::hash(text.as_bytes());
    format!("{text}{checksum:08x}\n")
}

/// Parses the content of a lock file, which is exactly one record. `None` for anything else.
pub(crate) fn parse_record(bytes: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(bytes).ok()?.split(' ').nth(1)?;
    let token = digits.parse().ok()?;
    (record(token).as_bytes() == bytes).then_some(token)
}

/// Returns the token after `last`. It is at least the wall clock, so that it is above the tokens of a deleted lock file
/// unless the clock was set back. `None` if there are no more numbers.
pub(crate) fn next_token(last: u64, wall_clock_us: u64) -> Option<u64> {
    Some(last.checked_add(1)?.max(wall_clock_us))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn names_become_files() {
        assert_eq!(lock_file(&name("orders/42")), "orders%2F42.lock");
        assert_eq!(holder_file(&name("Orders")), "%4Frders.holder");
        assert_eq!(record_file(&name("Orders")), "%4Frders.record");
        assert_eq!(lock_file(&name("..")), "%2E%2E.lock");
        assert_eq!(lock_file(&name("nul")), "%6Eul.lock");
        assert_eq!(lock_file(&name("com1.x")), "%63om1.x.lock");
        assert_eq!(lock_file(&name("NUL")), "%4E%55%4C.lock");
        assert_eq!(lock_file(&name("com")), "com.lock");
    }

    #[test]
    fn long_names_fit_and_stay_apart() {
        let [upper, longer, lower] =
            ["A".repeat(1000), "A".repeat(1001), "a".repeat(1000)].map(|text| stem(&name(&text)));
        for stem in [&upper, &longer, &lower] {
            assert!(stem.len() <= STEM_BYTES_MAX, "{}", stem.len());
        }
        assert!(upper != longer && upper.to_lowercase() != lower);
        assert_eq!(stem(&name(&"A".repeat(STEM_BYTES_MAX / 3))), "%41".repeat(STEM_BYTES_MAX / 3));
        assert!(stem(&name(&"A".repeat(STEM_BYTES_MAX / 3 + 1))).contains("%-"));
    }

    #[test]
    fn foreign_files_are_no_locks_with_a_name() {
        for file in [".lock", ".new-1.lock", "a.holder", "a.lock.old", "a"] {
            assert_eq!(stem_of_lock_file(file), None, "{file}");
        }
        assert_eq!(stem_of_lock_file("a.lock.lock"), Some("a.lock"));
        for stem in ["A", "a b", "%41%", "%6", "%zz", "con", "%2f", "a%-0"] {
            assert_eq!(super::name(stem), None, "{stem}");
        }
    }

    #[test]
    fn cut_name_may_begin_with_what_is_left_of_it() {
        let long = format!("Orders/{}", "x".repeat(1000));
        let cut = stem(&name(&long));
        assert_eq!(super::name(&cut), None);
        for prefix in ["", "Ord", "Orders/", "Orders/xxx", &long] {
            assert!(may_begin_with(&cut, prefix), "{prefix}");
        }
        assert!(!may_begin_with(&cut, "orders/") && !may_begin_with(&cut, "Orders/y"));
    }

    #[test]
    fn tokens_rise_and_end() {
        assert_eq!(next_token(0, 0), Some(1));
        assert_eq!(next_token(7, 5), Some(8));
        assert_eq!(next_token(7, 1000), Some(1000));
        assert_eq!(next_token(u64::MAX - 1, 5), Some(u64::MAX));
        assert_eq!(next_token(u64::MAX, 5), None);
    }

    #[test]
    fn invalid_records_are_rejected() {
        let good = record(7);
        assert_eq!(good.len(), RECORD_BYTES);
        for foreign in [
            String::new(),
            "\0".repeat(RECORD_BYTES),
            good.repeat(2),
            good[..45].into(),
            "7".into(),
            "7 7 7".into(),
        ] {
            assert_eq!(parse_record(foreign.as_bytes()), None, "{foreign:?}");
        }
    }

    proptest! {
        #[test]
        fn file_names_are_injective_without_case(one in "[a-cA-C./%]{1,4}|\\PC{1,300}", other in "[a-cA-C./%]{1,4}") {
            let (a, b) = (stem(&name(&one)), stem(&name(&other)));
            prop_assert_eq!(one == other, a.to_lowercase() == b.to_lowercase());
            prop_assert!(a.len() <= STEM_BYTES_MAX && !a.contains('/'));
            let is_cut = a.contains("%-");
            prop_assert_eq!(super::name(&a), (!is_cut).then(|| name(&one)));
            let prefix: String = one.chars().take(2).collect();
            prop_assert!(may_begin_with(&a, &prefix) && may_begin_with(&a, &one));
        }

        #[test]
        fn a_record_survives_and_a_damaged_one_is_noticed(token: u64, location in 0..RECORD_BYTES, bit in 0_u8..8) {
            let mut bytes = record(token).into_bytes();
            prop_assert_eq!(parse_record(&bytes), Some(token));
            bytes[location] ^= 1 << bit;
            prop_assert_eq!(parse_record(&bytes), None);
        }
    }
}
