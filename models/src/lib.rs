//! The protocols of lockkit as models, checked exhaustively within a small scope.
//!
//! Every model is a folder. `mod.rs` says what the model contains, names its states as the code does, and lists the
//! safety steps of the protocol (`Step`), each with what breaks without it. `model.rs` lists what may happen (`Action`),
//! and what must be true; `property.rs` says how that is judged, `scenes.rs` which scopes are explored and what liveness
//! means. Every other file is one role: the clients' claims, the server, a task. [`modes`] is the rule that two models
//! share.
//!
//! The full protocol has no counterexample in any of its scenes. Without any one of its steps there is one, and the
//! tests assert which property breaks.
//!
//! The same holds for all models:
//!
//! * *Time* is left out, except in the keeper's model: a lifetime may end at any moment, unless a step of the protocol
//!   requires something else before. The contents of values are left out as well.
//! * *Loss* and other faults happen at any moment, as often as the scene allows (`frame.rs`).
//! * *Liveness* assumes strong fairness of the steps that a model names ([`explore::Fairness::is_fair`]).
//!
//! `cargo run -p lockkit-models` prints the table and, with a model's name, the counterexamples.

mod actions;
pub mod etcd;
pub mod etcd_modes;
pub mod explore;
mod few;
mod frame;
pub mod keeper;
pub mod modes;
mod rank;
pub mod redis;
pub mod redis_modes;
pub mod redlock;
mod scope;
mod walk;
pub mod zookeeper;

pub use self::{frame::ClaimNo, scope::Scope};
