//! What a session can do besides locking: [elections](elections) and [records](records).

mod elections;
mod leader_watch;
mod records;
