//! The core of lockkit: the types that users meet, the traits that backends implement, the keeper that stands
//! between them, and the in-memory backend.
//!
//! Applications use the `lockkit` crate, which adds `connect(url)` and the backends for real stores. This crate knows
//! no server; a third-party backend depends on it alone.

pub mod backend;
mod clock;
mod error;
pub mod limits;
mod metadata;
mod name;
mod owner;
mod status;
mod token;

pub use self::{
    clock::{BootInstant, Clock, TimeSource},
    error::{Error, ErrorKind, Result},
    metadata::Metadata,
    name::LockName,
    owner::Owner,
    status::{Status, StatusWatch},
    token::{Fence, FencingToken},
};
