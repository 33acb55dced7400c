//! The conformance suite of lockkit: each promise of a lock backend is a case that can fail.
//!
//! A backend passes the suite a [`Harness`], which makes stores and, where it can, injects faults. Its test program is
//!
//! ```no_run
//! # use lockkit_conformance::memory::MemoryHarness;
//! fn main() -> std::process::ExitCode {
//!     lockkit_conformance::main(MemoryHarness)
//! }
//! ```
//!
//! with `harness = false` in its manifest, so that `cargo test --test conformance` lists and filters single cases.
//! `docs/adding-a-backend.md` of the repository is the guide.
//!
//! * A [case](Case) has a name that says what holds, the [properties](Property) that it proves, and its
//!   [needs](Need).
//! * A case whose needs a backend does not claim, or its harness has no hook for, is *ignored with the reason*. It
//!   never counts as passed.
//! * After every case the suite checks for residue: each lock that the case used must be free again, no client may still
//!   watch it, no connection may be left open and no task may still run. The store must hold no permanent entries but the
//!   permitted ones, and not more entries per lock than the harness states. In the shared store, those count whose place
//!   contains the name of the case; all others are checked after the last case.
//! * Every bound on time is computed from what the backend declares (see [`Bounds`]).
//! * The suite itself is tested: [`broken`] holds wrong backends, and `tests/self_check/` lists the cases that fail on
//!   each.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod access;
mod bounds;
pub mod broken;
pub mod direct;

mod case;
mod cases;
mod context;
mod descriptors;
mod fault;
mod harness;
pub mod history;
mod link;
pub mod memory;
mod observed;
pub mod own;
mod plain;
mod report;
mod residue;
mod runner;
mod worker;

pub use self::{
    access::{Access, ShownCertificate},
    bounds::Bounds,
    case::{Case, CaseFuture, Need, Property},
    fault::{Hook, LinkFault, StoreFault},
    harness::{AnyBackend, Entry, Harness, Rounds, Sharing, Store, Time, WallClock},
    link::ClientLink,
    plain::Plain,
    report::{CaseResult, Figures, Outcome},
    runner::{cases, main, main_of, run_case},
};
