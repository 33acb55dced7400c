//! etcd as a [lockkit](https://docs.rs/lockkit) backend.
//!
//! Locks are queues of leased keys in order of creation, as in etcd's own Go package `concurrency`, so that clients of
//! both kinds can share them (see [`Names::Raw`]); but a releasing client tells the next one by a mail of its own,
//! where the usual watch on the predecessor's key waits for a loop in the server that runs every 100 ms.
//!
//! * **Exclusion** while clock rates differ by less than one per cent: a client whose lease was not renewed in time
//!   stops to believe in its locks before the server gives them to others.
//! * **First come, first served**, and **fencing tokens** that are revisions of the store: they rise strictly within
//!   one data history, across all clients of a queue.
//! * A client that dies is succeeded when its lease ends: one ttl after its last renewal, plus up to 1 s, plus one
//!   election timeout for every change of leader in between.
//!
//! Needs etcd 3.4 or later; 3.4.42, 3.5.28 and 3.6.9 are the first releases without a known fault that can break a
//! lock, older ones are warned of in the log. Building needs `protoc`, because the crate `etcd-client` does; TLS
//! ([`Tls`], feature `tls`) needs a C compiler.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod acquire;
mod admin;
mod backend;
mod busy;
mod call;
mod claims;
mod config;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod lease;
mod life;
mod login;
mod mail;
mod outage;
mod release;
mod session;
mod spare;
mod tls;
mod txn;
mod watch;

#[doc(inline)]
pub use lockkit_core::backend::tls::Tls;

pub use self::{admin::INSPECTED_CONTENDERS_MAX, backend::EtcdBackend, config::EtcdConfig, keys::Names};

/// The URL scheme of this backend.
pub const SCHEME: &str = "etcd";

/// The URL scheme of this backend with TLS.
pub const SCHEME_TLS: &str = "etcds";
