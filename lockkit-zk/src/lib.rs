//! ZooKeeper as a [lockkit](https://docs.rs/lockkit) backend.
//!
//! A lock is a queue of ephemeral sequential nodes, as in Apache Curator, so both kinds of programs can share locks
//! (see [`Form`] and [`Names`]). Each waiter watches only the node before its own.
//!
//! * **Exclusion** holds while clock rates differ by less than one per cent: a client stops relying on its locks before
//!   the ensemble can grant them to others. Its heartbeats go through leader and quorum, because a server that is cut
//!   off from its leader still answers pings and reads, and because the client learns late that its session has
//!   expired.
//! * **First come, first served.** **Fencing tokens** are the ids of the transactions that created the nodes (`czxid`).
//!   They rise strictly within one data history, even when a directory is created again and its sequence numbers
//!   restart at 0.
//! * When a client dies, its locks pass on when its session expires.
//! * **Writes in the same ensemble** can carry the evidence of a grant: a check of the holder's node in their multi. The
//!   ensemble refuses them from the moment at which that node is gone, so before any later grant. See
//!   `examples/zk_guarded_writes.rs`. The check needs read permission on the node. Only in the default form: in the others
//!   a later claim may get a node of the same name ([`Form`]).
//! * **Elections** share the nodes of Curator's `LeaderSelector`; with [`Names::Raw`] also what they propose.
//! * **Records**: one persistent node per name below `ROOT/:records`, which the server keeps for good. Elections and
//!   records exist only in the default form, [`Form::Curator`], because a later claim of another form may get a node of
//!   the same name.
//! * **Pins are not offered**: an ephemeral node ends with its session, so no hold can outlive its client.
//!
//! * **For operators**: `list` shows every lock below the root that has contenders, of whichever program. ZooKeeper cannot
//!   list page by page: for each page of a listing, the client reads the names of all nodes below the root in one answer.
//!   `inspect` shows the session of each contender, not how long it remains, which ZooKeeper reports to no client.
//!   `break_lock` deletes the holder's node: the next waiter is notified as after a release, and the broken holder learns
//!   of it within a heartbeat (ttl / 10). Where the lock is one node ([`Form::Single`]) it is refused, because ZooKeeper
//!   deletes by name and could hit the next holder.
//!
//! Requires ZooKeeper 3.6 or later. TLS ([`Tls`], feature `tls`) requires a C compiler.
//!
//! The public interface has no type of the client crate, except in [`Owned`] behind a feature named after its version.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
mod admin;
mod backend;
mod config;
mod connect;
mod error;
mod keys;
mod liveness;
mod node_data;
mod owned;
mod reach;
mod sequence;
mod session;
mod tls;
mod url;
mod watchdog;
mod wire;

#[doc(inline)]
pub use lockkit_core::backend::tls::Tls;

pub use self::{
    access::Access,
    admin::{INSPECTED_CONTENDERS_MAX, INSPECTED_DATA_CHARS_MAX},
    backend::ZkBackend,
    config::{Login, Parents, ZkConfig},
    keys::{Form, Names},
    owned::Owned,
};

/// The URL scheme of this backend.
pub const SCHEME: &str = "zk";

/// The URL scheme of this backend with TLS.
pub const SCHEME_TLS: &str = "zks";
