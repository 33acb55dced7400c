//! The same locks for callers without async code: every call blocks its thread until the result is there.
//!
//! ```
//! # fn main() -> lockkit::Result<()> {
//! let client = lockkit::blocking::connect("memory:")?; // the client runs on a thread of its own
//! let guard = client.lock("orders/42")?.acquire()?; // blocks
//! println!("writing with token {}", guard.token());
//! guard.release()?; // or drop it, which does not block
//! client.close() // before `main` returns, or others wait for the ttl
//! # }
//! ```
//!
//! Inside a tokio runtime, every call that blocks returns `Unsupported`; use [`Client::as_async`] there, or
//! [`connect`](crate::connect).

pub use lockkit_core::blocking::{Client, Guard, Lock, LockAll, SetGuard};

use crate::Result;

/// Connects to the store that a URL names. Blocks until the session is open.
///
/// # Errors
///
/// As [`builder`](crate::builder) and [`ClientBuilder::build_blocking`](crate::ClientBuilder::build_blocking).
pub fn connect(url: impl AsRef<str>) -> Result<Client> {
    crate::builder(url)?.build_blocking()
}
