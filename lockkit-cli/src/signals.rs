//! The signals that the program handles.

use std::{collections::BTreeSet, future::poll_fn, task::Poll};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

/// Signals that end a process by default: during the wait they end the wait, later they are forwarded to the job.
pub(crate) const ENDING: &[Signal] =
    &[Signal::HUP, Signal::INT, Signal::QUIT, Signal::ALARM, Signal::TERM, Signal::USR1, Signal::USR2];

/// Signals that only matter while a job runs.
pub(crate) const JOB_CONTROL: &[Signal] = &[Signal::WINCH, Signal::TSTP, Signal::CONT];

/// A stream of signals; equal signals that arrive at the same moment count as one, as usual on Unix.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to receive these signals, instead of being ended by them.
    ///
    /// Signals that the caller of this program has set to be ignored (`nohup`, a background job of a script) stay
    /// ignored, for the job as well.
    pub(crate) fn listen(signals: &[Signal]) -> Result<Self, Failure> {
        let ignored = ignored();
        signals
            .iter()
            .filter(|signal| !ignored.contains(&signal.as_raw()))
            .map(|signal| Ok((*signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<std::io::Result<_>>()
            .map(Self)
            .map_err(|cause| Failure::system("handle signals", cause))
    }

    /// Starts to receive these signals, too.
    pub(crate) fn listen_also(&mut self, signals: &[Signal]) -> Result<(), Failure> {
        self.0.extend(Self::listen(signals)?.0);
        Ok(())
    }

    /// Waits for the next signal; for ever if there are none to receive.
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

/// Notifies that a child has ended, stopped or continued. Create it before the first child.
#[derive(Debug)]
pub(crate) struct Children(unix::Signal);

impl Children {
    pub(crate) fn watch() -> Result<Self, Failure> {
        let signal = unix::signal(SignalKind::child());
        signal.map(Self).map_err(|cause| Failure::system("handle signals", cause))
    }

    /// Waits for the next change of any child.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn changed(&mut self) {
        self.0.recv().await;
    }
}

/// Returns the signals that this process was started to ignore, if the platform shows them without unsafe code.
fn ignored() -> BTreeSet<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask & (1 << (signal - 1)) != 0).collect()
}
