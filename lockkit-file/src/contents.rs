//! The texts of holder files and record files, each with a checksum. No I/O.
//!
//! A holder file can be read while the next holder writes it, so a text may be a mixture of two, and any file of the
//! folder may be a foreign one. The checksum shows both.

use std::str;

use lockkit_core::{FencingToken, Metadata, limits::METADATA_BYTES_MAX};

/// Length of a checksum: 32 bits in hexadecimal digits.
const CHECKSUM_BYTES: usize = 8;

/// Longest holder file, in bytes: a token in decimal digits, the metadata, the checksum, and a line end after each.
pub(crate) const HOLDER_BYTES_MAX: usize = 20 + METADATA_BYTES_MAX + CHECKSUM_BYTES + 3;

/// Longest text of a record, in bytes. Bounds what a read of a foreign file takes.
pub(crate) const RECORD_TEXT_BYTES_MAX: usize = 64 * 1024;

const RECORD_MARK: &str = "lockkit-record-1 ";

/// Longest record file, in bytes: the mark, the checksum, a line end, the text.
pub(crate) const RECORD_BYTES_MAX: u64 =
    (RECORD_MARK.len() + CHECKSUM_BYTES + 1 + RECORD_TEXT_BYTES_MAX) as u64;

/// Returns the text of a holder file: token, metadata as JSON, and checksum, a line each.
pub(crate) fn holder(token: FencingToken, metadata_json: &str) -> String {
    let text = format!("{token}\n{metadata_json}\n");
    let checksum = crc32fast::hash(text.as_bytes());
    format!("{text}{checksum:08x}\n")
}

/// Parses a holder file, which may have any content.
pub(crate) fn parse_holder(bytes: &[u8]) -> Option<(FencingToken, Metadata)> {
    let text = str::from_utf8(bytes).ok()?;
    let (signed, checksum) = text.split_at_checked(text.len().checked_sub(CHECKSUM_BYTES + 1)?)?;
    if checksum != format!("{:08x}\n", crc32fast::hash(signed.as_bytes())) {
        return None;
    }
    let (token, metadata) = signed.split_once('\n')?;
    let metadata = Metadata::from_json(metadata.trim_end().as_bytes())?;
    Some((FencingToken::new(token.parse().ok()?), metadata))
}

/// Returns the content of a record file: a line with the checksum, then the text.
pub(crate) fn record(text: &str) -> String {
    format!("{RECORD_MARK}{:08x}\n{text}", crc32fast::hash(text.as_bytes()))
}

/// Parses a record file. `None` for anything that [`record`] did not write.
pub(crate) fn parse_record(bytes: &[u8]) -> Option<&str> {
    let (_, text) = str::from_utf8(bytes).ok()?.split_once('\n')?;
    (record(text).as_bytes() == bytes).then_some(text)
}

#[cfg(test)]
mod tests {
    use lockkit_core::Proposal;
    use proptest::prelude::*;

    use super::*;

    fn metadata(value: &str) -> Metadata {
        Metadata::of_this_process(Some("label")).with_proposal(Proposal::new(value, 7))
    }

    #[test]
    fn mixture_of_two_holders_is_nobody() {
        let one = holder(FencingToken::new(1), &metadata("1.1.1.1:80").to_json());
        let other = holder(FencingToken::new(2), &metadata("2.2.2.2:80").to_json());
        assert_eq!(one.len(), other.len());
        for length in 1..one.len() - 1 {
            let mixed = format!("{}{}", &one[..length], &other[length..]);
            let found = parse_holder(mixed.as_bytes()).map(|(token, _)| token.get());
            assert!(found.is_none() || mixed == one || mixed == other, "{mixed}");
        }
        assert!(parse_holder(format!("{one}{other}").as_bytes()).is_none());
    }

    #[test]
    fn foreign_records_are_rejected() {
        let good = record("7");
        assert_eq!(parse_record(good.as_bytes()), Some("7"));
        for foreign in ["", "\n", "7", "lockkit-record-1 7\n7", "lockkit-record-1 00000000\n7", &good[1..]] {
            assert_eq!(parse_record(foreign.as_bytes()), None, "{foreign:?}");
        }
    }

    proptest! {
        #[test]
        fn texts_survive_and_damage_is_noticed(value in "\\PC{0,100}", token: u64, at: prop::sample::Index) {
            let metadata = metadata(&value);
            let mut bytes = holder(FencingToken::new(token), &metadata.to_json()).into_bytes();
            prop_assert!(bytes.len() <= HOLDER_BYTES_MAX);
            prop_assert_eq!(parse_holder(&bytes), Some((FencingToken::new(token), metadata)));
            let location = at.index(bytes.len());
            bytes[location] ^= 1;
            prop_assert_eq!(parse_holder(&bytes), None);

            let mut bytes = record(&value).into_bytes();
            prop_assert_eq!(parse_record(&bytes), Some(value.as_str()));
            let location = at.index(bytes.len());
            bytes[location] ^= 1;
            prop_assert_eq!(parse_record(&bytes), None);
        }
    }
}
