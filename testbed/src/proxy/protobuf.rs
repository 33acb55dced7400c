//! Fields of protobuf messages, without their schema.

use std::ops::Range;

/// One field of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) number: u64,
    /// The position of its tag.
    pub(super) tag: usize,
    pub(super) value: Value,
}

/// The value of a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Varint(u64),
    /// The position of a text, bytes or a message.
    Bytes(Range<usize>),
    Fixed,
}

/// Iterates over the fields of a message, up to the first invalid one.
pub(super) fn fields(message: &[u8]) -> impl Iterator<Item = Field> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let tag = at;
        let key = varint(message, &mut at)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(message, &mut at)?),
            1 => fixed(&mut at, 8),
            2 => {
                let length = usize::try_from(varint(message, &mut at)?).ok()?;
                let bytes = at..at.checked_add(length)?;
                at = bytes.end;
                Value::Bytes(bytes)
            }
            5 => fixed(&mut at, 4),
            _ => return None,
        };
        (at <= message.len()).then_some(Field { number: key >> 3, tag, value })
    })
}

fn fixed(at: &mut usize, bytes: usize) -> Value {
    *at += bytes;
    Value::Fixed
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_all_wire_types() {
        let message = [&[0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d][..], &[0; 4], &[0x58, 1]].concat();
        let found: Vec<_> = fields(&message).map(|field| (field.number, field.tag, field.value)).collect();
        let expected = [
            (1, 0, Value::Varint(150)),
            (2, 3, Value::Bytes(5..7)),
            (3, 7, Value::Fixed),
            (11, 12, Value::Varint(1)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn invalid_field_ends_the_iteration() {
        for message in [&[0x0a, 200][..], &[0xff; 20], &[0x0b], &[0x09, 1]] {
            assert_eq!(fields(message).count(), 0, "{message:?}");
        }
    }
}
