//! Runs each example as users run it, in processes of its own, on real stores.
//!
//! What a lock must prevent is also tried without it: `memory:` locks within one process only, so between several
//! processes the same program then does what the lock prevents. A test that does not see the difference proves nothing.
//!
//! `cargo test -p lockkit-recipes` builds the examples first. With `--test it` alone they stay as they were built last.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod backends;
mod processes;
mod races;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zk"))]
mod rights;
mod sale;
mod shutdown;
mod stores;
