//! The task that observes the leader of one lock.
//!
//! It watches, reads, reports what changed, and waits for the watch or for the next re-check. Failure cases:
//!
//! * A notification is lost, or comes before the change can be read: the re-check finds the change.
//! * The session ends: the observation continues in the next one. What changed in between is found by its first read.
//! * A read answers with an older leader than an earlier one: it is not reported. If the store repeats such answers, its
//!   history is not the one that was observed (restored from a backup): the observation ends with an error.
//! * The observer is slow: changes wait for it, [`OBSERVED_CHANGES_MAX`] at most; then changes that follow each other
//!   are reported as one.

use std::{convert::Infallible, sync::Arc};

use tokio::sync::mpsc;
use tracing::debug;

use super::{Keeper, active_session::ActiveSession, caught, caught::contained, closed};
#[cfg(doc)]
use crate::limits::OBSERVED_CHANGES_MAX;
use crate::{
    Error, ErrorKind, FencingToken, LockName, Result,
    backend::{LeaderEntry, recheck_pause, retry_pauses},
    limits::OLDER_LEADERS_MAX,
};

/// Observes the leader of one lock.
pub(super) struct Observing {
    keeper: Arc<Keeper>,
    name: LockName,
    changes: mpsc::Sender<Result<Option<LeaderEntry>>>,
    reported: Reported,
}

/// What was reported to an observer.
#[derive(Debug, Default)]
struct Reported {
    /// The last report; `None` before the first one.
    last: Option<Option<LeaderEntry>>,
    /// The newest leader and proposal of all reports.
    newest: Option<(FencingToken, u64)>,
    /// How many answers in succession were older than that.
    older: u32,
    /// How many reports there were.
    number: u64,
}

/// Why an observation ends.
enum ObservationEnd {
    NobodyListens,
    Failed(Error),
}

impl From<Error> for ObservationEnd {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Observing {
    pub(super) fn new(
        keeper: Arc<Keeper>,
        name: LockName,
        changes: mpsc::Sender<Result<Option<LeaderEntry>>>,
    ) -> Self {
        Self { keeper, name, changes, reported: Reported::default() }
    }

    pub(super) async fn run(mut self) {
        if let ObservationEnd::Failed(error) = self.observe().await {
            // Fails if the observer has gone.
            let _ = self.changes.send(Err(error.with_lock(&self.name))).await;
        }
    }

    /// Observes in one session after another; returns why it cannot continue.
    ///
    /// Only waits are dropped when the observer goes, never a request.
    async fn observe(&mut self) -> ObservationEnd {
        let mut pauses = retry_pauses();
        loop {
            let active = tokio::select! {
                active = self.keeper.current.wait_open() => active,
                () = self.changes.closed() => return ObservationEnd::NobodyListens,
            };
            let Some(active) = active else {
                return ObservationEnd::Failed(self.keeper.current.not_open("observe"));
            };
            let number = self.reported.number;
            let Err(end) = self.observe_in(&active).await;
            match end {
                ObservationEnd::NobodyListens => return end,
                ObservationEnd::Failed(error) if self.continues_after(&error) => {
                    let lock = self.name.as_ref();
                    contained(|| debug!(lock, error = format_args!("{error:#}"), "observing again"));
                }
                ObservationEnd::Failed(_) => return end,
            }
            if self.reported.number > number {
                pauses = retry_pauses();
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = self.keeper.closing.cancelled() => return ObservationEnd::Failed(closed("observe")),
                () = self.changes.closed() => return ObservationEnd::NobodyListens,
            }
        }
    }

    fn continues_after(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Lost => true,
            // A session that was closed is followed by another one, unless the client is closed.
            ErrorKind::Closed => !self.keeper.closing.is_cancelled(),
            _ => false,
        }
    }

    /// Observes in one session until it ends or a request fails.
    async fn observe_in(&mut self, active: &ActiveSession) -> Result<Infallible, ObservationEnd> {
        let Some(elections) = active.session().elections() else {
            return Err(self.keeper.unsupported("observe").into());
        };
        let mut watch = caught("watch leader", elections.watch(&self.name)).await??;
        loop {
            let leader = caught("read leader", elections.leader(&self.name)).await??;
            if let Some(change) = self.reported.change(leader)? {
                self.changes.send(Ok(change)).await.map_err(|_| ObservationEnd::NobodyListens)?;
            }
            tokio::select! {
                () = watch.changed() => {}
                () = tokio::time::sleep(recheck_pause(active.ttl())) => {}
                () = active.ended() => return Err(Error::new(ErrorKind::Lost, "observe").into()),
                () = self.changes.closed() => return Err(ObservationEnd::NobodyListens),
            }
        }
    }
}

impl Reported {
    /// Returns what to report when the store answers with this leader.
    ///
    /// # Errors
    ///
    /// `Unexpected` if the answers have been older than the reports [`OLDER_LEADERS_MAX`] times.
    fn change(&mut self, leader: Option<LeaderEntry>) -> Result<Option<Option<LeaderEntry>>> {
        let version = leader.as_ref().map(|leader| (leader.token, leader.proposal.number));
        if let (Some((token, number)), Some((newest, last_number))) = (version, self.newest) {
            if token < newest {
                self.older += 1;
                if self.older >= OLDER_LEADERS_MAX {
                    return Err(Error::new(ErrorKind::Unexpected, "observe").with_message(
                        "the tokens of the store have fallen; was it restored from a backup?",
                    ));
                }
                return Ok(None);
            }
            if token == newest && number < last_number {
                return Ok(None);
            }
        }
        self.older = 0;
        self.newest = self.newest.max(version);
        if self.last.as_ref() == Some(&leader) {
            return Ok(None);
        }
        self.last = Some(leader.clone());
        self.number += 1;
        Ok(Some(leader))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Proposal;

    fn leader(token: u64, number: u64) -> Option<LeaderEntry> {
        Some(LeaderEntry::new(FencingToken::new(token), Proposal::new("a", number), None))
    }

    #[test]
    fn older_leader_is_never_reported_after_a_newer_one() {
        let mut reported = Reported::default();
        let answers = [
            (None, true),
            (None, false),
            (leader(3, 1), true),
            (leader(3, 1), false),
            (leader(3, 2), true),
            (leader(3, 1), false),
            (None, true),
            (leader(2, 9), false),
            (leader(3, 2), true),
            (leader(5, 1), true),
            (leader(3, 2), false),
            (leader(5, 1), false),
        ];
        for (answer, is_reported) in answers {
            let change = reported.change(answer.clone()).unwrap();
            assert_eq!(change, is_reported.then_some(answer));
        }
    }

    #[test]
    fn older_answers_count_only_in_succession() {
        let mut reported = Reported::default();
        reported.change(leader(7, 1)).unwrap();
        for _ in 0..OLDER_LEADERS_MAX {
            for _ in 1..OLDER_LEADERS_MAX {
                assert_eq!(reported.change(leader(6, 1)).unwrap(), None);
            }
            assert_eq!(reported.change(leader(7, 1)).unwrap(), None);
        }
    }

    #[test]
    fn fallen_tokens_end_the_observation() {
        let mut reported = Reported::default();
        reported.change(leader(7, 1)).unwrap();
        for _ in 1..OLDER_LEADERS_MAX {
            assert_eq!(reported.change(leader(6, 1)).unwrap(), None);
        }
        assert_eq!(reported.change(leader(6, 1)).unwrap_err().kind(), ErrorKind::Unexpected);
    }
}
