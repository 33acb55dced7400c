//! ZooKeeper as a [lockkit](https://docs.rs/lockkit) backend.
//!
//! Locks are queues of ephemeral sequential nodes, as in Apache Curator, so that both kinds of programs can share them (see
//! [`Form`] and [`Names`]). A waiter watches the one node before its own.
//!
//! * **Exclusion** while clock rates differ by less than one per cent: a client stops to believe in its locks before
//!   the ensemble can give them to others. Its heartbeats go through leader and quorum, because a server that is cut off
//!   from its leader goes on answering pings and reads, and because the news that a session has expired comes late.
//! * **First come, first served**, and **fencing tokens** that are the ids of the transactions that created the nodes
//!   (`czxid`): they rise strictly within one data history, also when a directory is made anew and its sequence numbers
//!   begin at 0.
//! * A client that dies is succeeded when its session expires.
//!
//! Needs ZooKeeper 3.6 or later. TLS ([`Tls`], feature `tls`) needs a C compiler.
//!
//! No type of the client crate is in this interface, but in [`Owned`] with a feature that is named after its version.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod access;
mod acquire;
mod admin;
mod backend;
mod beat;
mod call;
mod claims;
mod config;
mod connect;
mod error;
mod keys;
mod life;
mod owned;
mod parse;
mod presence;
mod proof;
mod release;
mod sequence;
mod session;
mod single;
mod tls;
mod watchdog;

#[doc(inline)]
pub use lockkit_core::backend::tls::Tls;

pub use self::{
    access::Access,
    admin::INSPECTED_CONTENDERS_MAX,
    backend::ZkBackend,
    config::{Login, Parents, ZkConfig},
    keys::{Form, Names},
    owned::Owned,
};

/// The URL scheme of this backend.
pub const SCHEME: &str = "zk";

/// The URL scheme of this backend with TLS.
pub const SCHEME_TLS: &str = "zks";
