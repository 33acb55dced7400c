//! Where a page of a listing begins, as a text for its caller. Pure.

use lockkit_core::{Error, ErrorKind, Result};

/// Where a page begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The range of keys, by its index.
    pub(super) range: usize,
    /// The last key that was read in it; `None` at its beginning.
    pub(super) after: Option<Vec<u8>>,
}

impl Cursor {
    /// Returns `INDEX` or `INDEX-KEY`, the key in hexadecimal digits: it need not be UTF-8.
    pub(super) fn to_text(&self) -> String {
        match &self.after {
            None => self.range.to_string(),
            Some(key) => {
                let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{}-{key}", self.range)
            }
        }
    }

    /// Parses what [`to_text`](Self::to_text) has returned.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (range, after) = match text.split_once('-') {
            None => (text, None),
            Some((range, key)) => (range, Some(bytes(key).ok_or_else(no_page)?)),
        };
        Ok(Self { range: range.parse().map_err(|_| no_page())?, after })
    }
}

/// Returns the error of a text that is no cursor of the listing.
pub(super) fn no_page() -> Error {
    let what = "`after` is not a cursor of this store: pass `Page::next` of the page before";
    Error::new(ErrorKind::InvalidConfig, "list locks").with_message(what)
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_survives_its_text() {
        for after in [None, Some(b"lockkit/a%2Fb/1f".to_vec()), Some(vec![0xff, 0])] {
            let cursor = Cursor { range: 1, after };
            assert_eq!(Cursor::parse(&cursor.to_text()).unwrap(), cursor);
        }
        for text in ["", "x", "0-zz", "-00", "0-é"] {
            assert_eq!(Cursor::parse(text).unwrap_err().kind(), ErrorKind::InvalidConfig, "{text}");
        }
    }
}
