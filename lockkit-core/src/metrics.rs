//! The library's metrics, through the `metrics` facade; nothing without the feature `metrics`.
//!
//! | name | kind | unit | labels |
//! |---|---|---|---|
//! | `lockkit_acquire_seconds` | histogram | seconds from call to result | scheme, outcome: granted, none, error |
//! | `lockkit_hold_seconds` | histogram | seconds from grant to the end of the hold | scheme |
//! | `lockkit_lost_total` | counter | holds | scheme |
//! | `lockkit_heartbeat_seconds` | histogram | seconds from sending a heartbeat to its answer | scheme |
//! | `lockkit_held` | gauge | holds renewed by a heartbeat | scheme |
//! | `lockkit_margin_seconds` | histogram | seconds left to the deadline when a renewal arrived | scheme |

use std::time::Duration;

use crate::Result;

#[cfg(feature = "metrics")]
mod enabled {
    use super::*;

    pub(crate) fn acquired<T>(scheme: &'static str, waited: Duration, result: &Result<Option<T>>) {
        let outcome = match result {
            Ok(Some(_)) => "granted",
            Ok(None) => "none",
            Err(_) => "error",
        };
        metrics::histogram!("lockkit_acquire_seconds", "scheme" => scheme, "outcome" => outcome)
            .record(waited);
    }

    pub(crate) fn held(scheme: &'static str, held: Duration, lost: bool) {
        metrics::histogram!("lockkit_hold_seconds", "scheme" => scheme).record(held);
        if lost {
            metrics::counter!("lockkit_lost_total", "scheme" => scheme).increment(1);
        }
    }

    pub(crate) fn heartbeat(scheme: &'static str, latency: Duration, held: usize) {
        metrics::histogram!("lockkit_heartbeat_seconds", "scheme" => scheme).record(latency);
        metrics::gauge!("lockkit_held", "scheme" => scheme).set(held as f64);
    }

    pub(crate) fn margin(scheme: &'static str, left: Duration) {
        metrics::histogram!("lockkit_margin_seconds", "scheme" => scheme).record(left);
    }
}

#[cfg(not(feature = "metrics"))]
mod enabled {
    use super::*;

    pub(crate) fn acquired<T>(_: &'static str, _: Duration, _: &Result<Option<T>>) {}
    pub(crate) fn held(_: &'static str, _: Duration, _: bool) {}
    pub(crate) fn heartbeat(_: &'static str, _: Duration, _: usize) {}
    pub(crate) fn margin(_: &'static str, _: Duration) {}
}

pub(crate) use enabled::{acquired, heartbeat, held, margin};
