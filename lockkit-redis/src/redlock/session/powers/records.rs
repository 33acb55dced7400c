//! The record of a lock: one text that only its holder writes, and that outlives holds, sessions and single nodes.
//!
//! Every node keeps the record with the token of the grant that wrote it, and replaces it only by a later one: of a
//! higher token, or of the same grant's later write. A read takes the record with the highest token.
//!
//! * A write is acknowledged once a majority of the nodes accepted it, each of which compared the lock's value in the
//!   same step ([`write_held`](RedlockSession::write_held)). Every later grant shares one of these nodes, where the write came before the
//!   grant. So a read under a later grant sees that record or a later one, and a stale holder is refused, also if the
//!   newer holder has written nothing yet.
//! * The grant was lost while the write was sent: it is refused, or not confirmed, but may be left at a minority. It was
//!   accepted there while no later grant had that node. A read that asks one of these nodes may return it, and another
//!   read may not, until a later grant has written. What such a record says was true when it was written.
//! * A late copy of an earlier write: the node has a higher number and keeps it.
//! * A node has lost its data and counts again: it lacks records that it had accepted. It notes the highest token that
//!   any grant had by then, and until when records of that time last. A read counts it only if it returns a record with
//!   a higher token. So two such nodes of three never make a read return an earlier record, or none: the read fails
//!   until the record is written again, or until all records of that time have expired. (`HDEL lockkit:redlock lost` at
//!   every node ends that earlier, and says that records may be forgotten.)
//! * The newest record has expired, an earlier one that was kept for longer has not: it may be returned where it is the
//!   only one left.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    ErrorKind, LockName, Result,
    backend::{Grant, Records},
};

use crate::{
    error::{Effect, RequestError},
    keys::LockKeys,
    redlock::{
        session::RedlockSession,
        wire::{RecordState, read_record, record_state, write_record},
    },
    wire::lifetime_ms,
};

/// Longest time for which a record is kept: a hundred years. Later instants are not exact in Lua.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The result of a read so far.
#[derive(Debug, PartialEq, Eq)]
enum Reading {
    /// The newest record.
    Newest(Option<String>),
    /// A majority answered, but nodes that have lost their data are among them.
    MayBeLost,
    NoMajority,
}

#[async_trait]
impl Records for RedlockSession {
    async fn read(&self, name: &LockName) -> Result<Option<String>> {
        let keys = self.layout.keys(name)?;
        self.read_newest(&keys).await.map_err(|fault| fault.into_error("read the record").with_lock(name))
    }

    async fn write(&self, grant: &Grant, record: &str, keep: Duration) -> Result<bool> {
        self.write_record(grant, record, keep)
            .await
            .map_err(|fault| fault.into_error("write the record").with_lock(grant.name()))
    }
}

impl RedlockSession {
    async fn read_newest(&self, keys: &LockKeys) -> Result<Option<String>, RequestError> {
        if self.closed.is_cancelled() {
            return Err(RequestError::session_closed());
        }
        let (nodes, rejoiner) = (&self.context.nodes, self.context.rejoiner.clone());
        let mut round = nodes.ask(read_record(keys), move |number, answer| {
            let state = record_state(answer)?;
            if state.is_none() {
                rejoiner.start_rejoin(number);
            }
            Ok(state)
        });
        let (mut seen, mut faults) = (Vec::new(), Vec::new());
        loop {
            let is_enough = matches!(reading(&seen, nodes.majority()), Reading::Newest(_));
            match round.next(is_enough).await {
                Some((_, Ok(Some(state)))) => seen.push(state),
                Some((number, Ok(None))) => faults.push((number, None)),
                Some((number, Err(fault))) => faults.push((number, Some(fault))),
                None => break,
            }
        }
        match reading(&seen, nodes.majority()) {
            Reading::Newest(record) => Ok(record),
            Reading::MayBeLost => Err(may_be_lost()),
            Reading::NoMajority => Err(nodes.no_majority(&faults)),
        }
    }

    async fn write_record(&self, grant: &Grant, record: &str, keep: Duration) -> Result<bool, RequestError> {
        let Some(won) = self.held(grant)? else { return Ok(false) };
        let keep = lifetime_ms(keep.min(KEEP_MAX));
        self.write_held(write_record(&won.attempt, won.token, won.next_write(), record, keep)).await
    }
}

fn may_be_lost() -> RequestError {
    RequestError::new(
        Effect::Busy,
        ErrorKind::Unavailable,
        "nodes have lost their data since, and the others that answered are no majority: a record may have been lost. It \
         can be read once these others are all up, it is written again, or records of that time have expired",
    )
}

/// Finds the newest record in the answers of nodes that count.
///
/// A later record than the highest of these answers was accepted by a majority. A node of it that has not lost data
/// since has that record. A node that has lost data notes a token that is not below it. So there is no later record if
/// a majority of the nodes note tokens that are at most the highest one found.
fn reading(seen: &[RecordState], majority: usize) -> Reading {
    let newest = seen.iter().filter_map(|one| one.record.as_ref()).max();
    let token = newest.map_or(0, |(token, ..)| *token);
    if seen.iter().filter(|one| one.lost <= token).count() >= majority {
        Reading::Newest(newest.map(|(.., text)| text.clone()))
    } else if seen.len() >= majority {
        Reading::MayBeLost
    } else {
        Reading::NoMajority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(token: u64, number: u64, lost: u64) -> RecordState {
        RecordState { record: Some((token, number, format!("{token}-{number}"))), lost }
    }

    fn lacks(lost: u64) -> RecordState {
        RecordState { record: None, lost }
    }

    fn newest(text: &str) -> Reading {
        Reading::Newest(Some(text.to_owned()))
    }

    #[test]
    fn newest_record_of_a_majority_is_read() {
        assert_eq!(reading(&[has(7, 1, 0), has(9, 1, 0)], 2), newest("9-1"));
        assert_eq!(reading(&[has(9, 2, 0), lacks(0), has(9, 1, 0)], 2), newest("9-2"));
        assert_eq!(reading(&[lacks(0), lacks(0)], 2), Reading::Newest(None));
        assert_eq!(reading(&[has(9, 1, 0)], 2), Reading::NoMajority);
    }

    #[test]
    fn node_that_lost_data_counts_only_for_later_records() {
        assert_eq!(reading(&[lacks(8), lacks(0)], 2), Reading::MayBeLost);
        assert_eq!(reading(&[lacks(8), has(7, 1, 0)], 2), Reading::MayBeLost);
        assert_eq!(reading(&[lacks(8), has(8, 1, 0)], 2), newest("8-1"));
        assert_eq!(reading(&[has(9, 1, 8), has(7, 1, 0)], 2), newest("9-1"));
        assert_eq!(
            reading(&[has(7, 1, 8), has(7, 1, 0)], 2),
            Reading::MayBeLost,
            "it may have had a later one"
        );
        assert_eq!(
            reading(&[lacks(8), lacks(0), lacks(0)], 2),
            Reading::Newest(None),
            "the two others suffice"
        );
        assert_eq!(reading(&[lacks(8), lacks(5), has(7, 1, 0)], 2), newest("7-1"));
    }
}
