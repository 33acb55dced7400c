//! The core of lockkit: the user-facing types, the backend traits, the keeper that connects the two, and the in-memory
//! backend.
//!
//! Applications use the `lockkit` crate, which adds `connect(url)` and the backends for real stores. This crate
//! contains no server-specific code; a third-party backend depends on this crate alone.

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
mod metrics;
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

pub use self::{
    builder::{ClientBuilder, ClientOptions},
    client::LockClient,
    clock::{BootInstant, Clock, TimeSource},
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
