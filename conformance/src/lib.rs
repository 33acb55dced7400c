//! The conformance suite of lockkit: every promise of a lock backend as a case that can fail.
//!
//! A backend hands the suite a [`Harness`], which makes stores and, where it can, does them harm. Its test program is
//!
//! ```no_run
//! # use lockkit_conformance::memory::MemoryHarness;
//! fn main() -> std::process::ExitCode {
//!     lockkit_conformance::main(MemoryHarness)
//! }
//! ```
//!
//! with `harness = false` in its manifest, so that `cargo test --test conformance` shows and filters single cases.
//! `docs/adding-a-backend.md` walks through it.
//!
//! * A [case](Case) has a name that is a sentence, the [properties](Property) that it proves, the
//!   [scenarios](Case::scenarios) of the design it stands for, and [what it needs](Need).
//! * Outcomes are honest: what a backend does not claim, or what its harness has no hook for, is *ignored with the
//!   reason*, never passed.
//! * After every case the suite looks for residue: each lock that the case used must be free again, and a store of its own
//!   holds nothing for good but what may stay. The store that cases share is looked through after the last one.
//! * No bound on time is a guess: each comes from what the backend declares (see [`Bounds`]).
//! * The suite is tested itself: [`broken`] holds wrong backends, and `tests/self_check/` says which cases fail on
//!   each.

mod access;
mod bounds;
pub mod broken;
pub mod by_hand;

mod case;
mod cases;
mod context;
mod driven;
mod fault;
mod harness;
pub mod history;
pub mod memory;
mod observed;
mod plain;
mod report;
mod residue;
mod runner;
mod worker;

pub use self::{
    access::{Access, Shown},
    bounds::Bounds,
    case::{Case, Need, Property, Running},
    fault::{Fault, Hook, LinkFault},
    harness::{AnyBackend, Entry, Harness, Link, Rounds, Sharing, Store, Time, WallClock},
    plain::Plain,
    report::{Figures, Outcome, Record},
    runner::{cases, main, run_case},
};
