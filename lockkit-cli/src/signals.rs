//! The signals that the program hears.

use std::{collections::BTreeSet, future::poll_fn, task::Poll};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

/// Signals that end a process which does not care: while waiting they end the wait, later they go to the job.
pub(crate) const ENDING: &[Signal] =
    &[Signal::HUP, Signal::INT, Signal::QUIT, Signal::ALARM, Signal::TERM, Signal::USR1, Signal::USR2];

/// Signals that are of interest to a running job only.
pub(crate) const JOB_CONTROL: &[Signal] = &[Signal::WINCH, Signal::TSTP, Signal::CONT];

/// A stream of signals; of several equal ones that arrive at the same moment only one is seen, as everywhere.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to hear these signals instead of being ended by them.
    ///
    /// Those that the caller of this program has set to be ignored (`nohup`, a background job of a script) stay
    /// ignored, for the job as well.
    pub(crate) fn hear(signals: &[Signal]) -> Result<Self, Failure> {
        let ignored = ignored();
        signals
            .iter()
            .filter(|signal| !ignored.contains(&signal.as_raw()))
            .map(|signal| Ok((*signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<std::io::Result<_>>()
            .map(Self)
            .map_err(|cause| Failure::system("handle signals", cause))
    }

    /// Starts to hear these as well.
    pub(crate) fn hear_also(&mut self, signals: &[Signal]) -> Result<(), Failure> {
        self.0.extend(Self::hear(signals)?.0);
        Ok(())
    }

    /// Waits for the next signal; for ever when there are none to hear.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a signal that arrives between two calls is not lost.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Tells that a child has ended, stopped or continued. To be made before the first child.
#[derive(Debug)]
pub(crate) struct Children(unix::Signal);

impl Children {
    pub(crate) fn watch() -> Result<Self, Failure> {
        let signal = unix::signal(SignalKind::child());
        signal.map(Self).map_err(|cause| Failure::system("handle signals", cause))
    }

    /// Waits for the next change, of whichever child.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn changed(&mut self) {
        self.0.recv().await;
    }
}

/// The signals that this process was started to ignore, where the platform tells without unsafe code.
fn ignored() -> BTreeSet<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask & (1 << (signal - 1)) != 0).collect()
}
