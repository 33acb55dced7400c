//! etcd as a [lockkit](https://docs.rs/lockkit) backend.
//!
//! A lock is a queue of leased keys, ordered by creation, as in etcd's own Go package `concurrency`; clients of both
//! kinds can share locks (see [`Names::Raw`]). A releasing client writes the handoff key of the next client in the same
//! transaction. That is faster than a watch on the predecessor's key, which etcd serves in a loop every 100 ms.
//!
//! * **Exclusion** while clock rates differ by less than one per cent: a client whose lease was not renewed in time
//!   stops relying on its locks before the server gives them to others.
//! * **First come, first served**, and **fencing tokens** that are the create revisions of the holders' keys: they rise
//!   strictly within one data history, across all clients of a queue, and everybody can read them.
//! * **Evidence** of every grant: a transaction that compares the create revision of the holder's key is refused as soon
//!   as the hold has ended, so no later than the next one begins. See `examples/etcd_guarded_writes.rs`.
//! * **Elections**: the value of the holder's key has the leader's proposal. With [`Names::Raw`] it is nothing else, as in
//!   Go's `concurrency.Election`: candidates and observers of both kinds see each other.
//! * **Records**: one text per lock that only its holder can write, in a key of its own.
//! * **Pins**: minimum hold times. The holder's key stays that long, even if the holder dies.
//! * **Other programs**: [`Form::Single`] and [`EtcdConfig::guard`] also exclude programs that lock by creating one key.
//!   With either of them, and with [`Form::Rpc`], there are no elections, records or pins; [`Form::Rpc`] has no evidence
//!   either.
//! * **Operators** see holders and waiters with their leases, list the locks of a prefix, and break a hold; the holder
//!   learns of it at once, if it is a lockkit client with a watch (any form but [`Form::Rpc`]). Programs of other kinds
//!   are not notified: most never read their key again, so only the fencing token stops them.
//! * The locks of a client that dies pass on when its lease ends: one ttl after its last renewal, plus up to 1 s. No
//!   lease expires while there is no leader, and a new leader gives each lease its whole ttl and one election timeout.
//!
//! A pinned key may stay for one per cent longer than it was pinned for, plus up to 2 s, and never less than one ttl if its
//! holder dies. A session that is closed with its lock pinned keeps its lease until that expires, one ttl later at most.
//!
//! Needs etcd 3.4 or later. 3.4.42, 3.5.28 and 3.6.9 are the first releases without a known fault that can break a
//! lock; for older ones a warning is logged. TLS ([`Tls`], feature `tls`) needs a C compiler.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod backend;
mod broken;
mod call;
mod client;
mod config;
mod error;
mod forms;
#[cfg(feature = "_fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handoff;
mod keys;
mod lease;
mod login;
mod outage;
mod reach;
mod session;
mod tls;
mod wire;

#[doc(inline)]
pub use lockkit_core::backend::tls::Tls;

pub use self::{
    admin::{INSPECTED_CONTENDERS_MAX, INSPECTED_DATA_CHARS_MAX, INSPECTED_LEASES_MAX},
    backend::EtcdBackend,
    config::EtcdConfig,
    forms::Form,
    keys::Names,
};

/// The URL scheme of this backend.
pub const SCHEME: &str = "etcd";

/// The URL scheme of this backend with TLS.
pub const SCHEME_TLS: &str = "etcds";
