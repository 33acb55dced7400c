//! What the keeper counts, through the `metrics` facade; nothing without the feature `metrics`.
//!
//! | name | kind | unit | labels |
//! |---|---|---|---|
//! | `lockkit_acquire_seconds` | histogram | seconds from call to answer | scheme, outcome: granted, none, error |
//! | `lockkit_hold_seconds` | histogram | seconds from grant to the end of the hold | scheme |
//! | `lockkit_lost_total` | counter | holds | scheme |
//! | `lockkit_beat_seconds` | histogram | seconds from sending a beat to its answer | scheme |
//! | `lockkit_held` | gauge | holds renewed by a beat | scheme |
//! | `lockkit_margin_seconds` | histogram | seconds left to the deadline when a renewal arrived | scheme |

use std::time::Duration;

use crate::{backend::BackendInfo, keeper::Answer};

#[cfg(feature = "metrics")]
mod enabled {
    use super::*;

    pub(crate) fn acquired(info: &BackendInfo, waited: Duration, answer: &Answer) {
        let outcome = match answer {
            Ok(Some(_)) => "granted",
            Ok(None) => "none",
            Err(_) => "error",
        };
        metrics::histogram!("lockkit_acquire_seconds", "scheme" => info.scheme, "outcome" => outcome)
            .record(waited);
    }

    pub(crate) fn held(info: &BackendInfo, held: Duration, lost: bool) {
        metrics::histogram!("lockkit_hold_seconds", "scheme" => info.scheme).record(held);
        if lost {
            metrics::counter!("lockkit_lost_total", "scheme" => info.scheme).increment(1);
        }
    }

    pub(crate) fn beat(scheme: &'static str, latency: Duration, held: usize) {
        metrics::histogram!("lockkit_beat_seconds", "scheme" => scheme).record(latency);
        metrics::gauge!("lockkit_held", "scheme" => scheme).set(held as f64);
    }

    pub(crate) fn margin(scheme: &'static str, left: Duration) {
        metrics::histogram!("lockkit_margin_seconds", "scheme" => scheme).record(left);
    }
}

#[cfg(not(feature = "metrics"))]
mod enabled {
    use super::*;

    pub(crate) fn acquired(_: &BackendInfo, _: Duration, _: &Answer) {}
    pub(crate) fn held(_: &BackendInfo, _: Duration, _: bool) {}
    pub(crate) fn beat(_: &'static str, _: Duration, _: usize) {}
    pub(crate) fn margin(_: &'static str, _: Duration) {}
}

pub(crate) use enabled::{acquired, beat, held, margin};
