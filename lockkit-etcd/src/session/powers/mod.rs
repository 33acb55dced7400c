//! What a session can do besides locking: [elections](elections), [records](records) and [pins](pins).

mod elections;
mod pins;
mod records;

pub(crate) use self::pins::Pin;
