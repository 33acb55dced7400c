//! The core of lockkit: the user-facing types, the backend traits, the keeper that connects the two, and the in-memory
//! backend.
//!
//! Applications use the `lockkit` crate, which adds `connect(url)` and the backends for real stores. This crate
//! contains no server-specific code; a third-party backend depends on this crate alone.
//!
//! # Logs and spans
//!
//! What the library does can be followed with [`tracing`](https://docs.rs/tracing), under the targets `lockkit_core`,
//! `lockkit_etcd` and so on:
//!
//! | what | level | when | fields |
//! |---|---|---|---|
//! | span `acquire` | DEBUG | from the call to the grant, or to the end without one; callers of one owner share it | `lock`, `scheme` |
//! | span `claim` | DEBUG | in `acquire`: one claim; after a lost session another one follows | `claim`, `wait` |
//! | span `hold` | DEBUG | from the grant to the release or the loss | `lock`, `scheme`, `token`, `claim` |
//! | span `release` | DEBUG | from the first request until the release is confirmed or given up | `lock`, `scheme`, `token`, `claim` |
//! | span `heartbeat` | DEBUG | one heartbeat | `scheme`, `held` |
//! | event `lock lost: ...` | WARN | once for each lost hold | `lock`, `scheme`, `token`, `claim`, `reason` |
//! | event `granted too late; released` | WARN | the session or the lease of a grant was over when it arrived | `lock`, `scheme`, `token`, `claim` |
//! | event `release given up` | WARN | the store did not confirm a release for a ttl; the session ends, and the lock with it | `lock`, `scheme`, `token`, `claim`, `error` |
//! | event `session lost: ...` | WARN | its locks are lost with it | `scheme`, `reason` |
//! | event `session not renewed` | WARN | a heartbeat was not answered; the next one follows | `scheme`, `error` |
//! | event `session opened too late` | WARN | opening a session took most of its ttl; it is closed | `scheme`, `error` |
//! | event `no new session yet` | WARN | the store does not open a session; retried | `scheme`, `error` |
//! | event `lock broken`, target `lockkit::audit` | WARN | this client has broken a hold for an operator | `lock`, `entry`, `token`, `host`, `pid` |
//! | event `lock perhaps broken`, target `lockkit::audit` | WARN | the store's answer to that is unknown | the same, and `error` |
//! | event `session opened` | INFO | a client connects, or connects again | `scheme`, `ttl` |
//!
//! Retries and other steps are events at DEBUG, inside these spans. Backends warn of servers that are set up unsafely. An
//! ordinary acquire and release emit nothing above DEBUG.
//!
//! `reason` has the values of the [metrics]. `claim` is the beginning of the claim's random id. No field
//! contains a secret. The spans `acquire`, `hold` and `release` are children of the caller's span, which therefore stays
//! open until the lock is released.
//!
//! There is no feature `tracing`, because a lost lock must not be silent: the event is the only trace of a loss that the
//! application does not look for. Without a subscriber, an event costs one comparison. To remove events from a program,
//! set a `max_level_*` or `release_max_level_*` feature of the crate `tracing`.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod blocking;
mod builder;
mod client;
mod clock;
mod election;
mod error;
mod guard;
mod keeper;
pub mod lease;
pub mod limits;
mod listing;
mod lock;
mod lock_all;
pub mod memory;
mod metadata;
pub mod metrics;
mod name;
mod once_per;
mod owner;
mod run_error;
mod set_guard;
mod status;
pub mod support;
mod sync;
mod token;
mod while_held;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use self::keeper::residue::WatchedClients;
pub use self::{
    builder::{ClientBuilder, ClientOptions},
    client::LockClient,
    clock::{BootInstant, Clock},
    election::{Election, Leader, Leadership, Observer},
    error::{Error, ErrorKind, Result},
    guard::LockGuard,
    listing::Listing,
    lock::Lock,
    lock_all::LockAll,
    metadata::{Metadata, Proposal},
    name::LockName,
    once_per::{OncePer, Turn},
    owner::Owner,
    run_error::RunError,
    set_guard::SetGuard,
    status::{Status, StatusWatch},
    token::{Fence, FencingToken},
};
