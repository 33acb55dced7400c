//! etcd as a [lockkit](https://docs.rs/lockkit) backend.
//!
//! A lock is a queue of leased keys, ordered by creation, as in etcd's own Go package `concurrency`; clients of both
//! kinds can share locks (see [`Names::Raw`]). A releasing client writes the handoff key of the next client in the same
//! transaction. That is faster than a watch on the predecessor's key, which etcd serves in a loop every 100 ms.
//!
//! * **Exclusion** while clock rates differ by less than one per cent: a client whose lease was not renewed in time
//!   stops to rely on its locks before the server gives them to others.
//! * **First come, first served**, and **fencing tokens** that are revisions of the store: they rise strictly within
//!   one data history, across all clients of a queue.
//! * **Other programs**: [`Form::Single`] and [`EtcdConfig::guard`] also exclude programs that lock by creating one key.
//! * The locks of a client that dies pass on when its lease ends: one ttl after its last renewal, plus up to 1 s, plus
//!   one election timeout for every change of leader in between.
//!
//! Needs etcd 3.4 or later. 3.4.42, 3.5.28 and 3.6.9 are the first releases without a known fault that can break a
//! lock; for older ones a warning is logged. Building needs `protoc`, because the crate `etcd-client` does; TLS
//! ([`Tls`], feature `tls`) needs a C compiler.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod acquire;
mod admin;
mod backend;
mod busy;
mod call;
mod config;
mod epoch;
mod error;
mod exclusive;
mod form;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handoff;
mod heartbeat;
mod key_pool;
mod keys;
mod lease;
mod login;
mod outage;
mod registry;
mod release;
mod rpc;
mod session;
mod single;
mod tls;
mod watch;
mod wire;

#[doc(inline)]
pub use lockkit_core::backend::tls::Tls;

pub use self::{
    admin::INSPECTED_CONTENDERS_MAX, backend::EtcdBackend, config::EtcdConfig, form::Form, keys::Names,
};

/// The URL scheme of this backend.
pub const SCHEME: &str = "etcd";

/// The URL scheme of this backend with TLS.
pub const SCHEME_TLS: &str = "etcds";
