//! Tests of the client and its keeper with a memory server or a session written by hand, on a paused clock.
//!
//! One program, because each more costs a second to build. [`abandoned_calls`](../abandoned_calls.rs) counts the threads
//! of its process, [`tracing_spans`](../tracing_spans.rs) reads spans and [`audit`](../audit.rs) events, which the process
//! registers once for all threads: they stay alone.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are not seen as tests")]

mod answers;
mod blocked_runtimes;
mod blocking;
mod breaking;
mod cancel_safety;
mod checked;
mod clock_checks;
mod common;
mod connecting;
#[cfg(feature = "metrics")]
mod counters;
mod deadlines;
mod draining;
mod elections;
mod error_names;
mod first_polls;
mod hold_lifetimes;
mod json;
mod late_grants;
mod leaks;
mod listing;
mod lock_sets;
mod lock_sets_cancelled;
mod memory_store;
#[cfg(feature = "metrics")]
mod metrics;
mod observers;
mod once_per;
mod outages;
mod panics;
mod pinned_holds;
mod random_histories;
mod reentrancy;
mod releases;
mod running;
mod scripted;
mod session_replacement;
mod sessions;
mod status;
mod unconfirmed_releases;
mod wakers;
