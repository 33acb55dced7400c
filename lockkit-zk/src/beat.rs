//! A beat: one transaction of checks proves the session alive and every hold in place.
//!
//! Failure cases:
//!
//! * The server that this client talks to is cut off from the leader: it goes on answering pings and reads. The checks
//!   go through leader and quorum, so they are not answered.
//! * A node is gone: the transaction names the first such check, and is repeated without it.
//! * No connection: nothing is sent before there is one, or a queue of old checks would go out with it.

use std::{collections::HashSet, time::Duration};

use lockkit_core::backend::{Beat, ClaimId, Grant, Renewal};

use crate::{
    call::{Created, bounded},
    error::{Effect, Fault},
    session::ZkSession,
};

/// Beats per ttl. A lifetime counts from a beat that was answered half a tick before the last one (a quarter of a ttl, where
/// the tick is not known); so many keep it above half a ttl in quiet times.
pub(crate) const BEATS_PER_TTL: u32 = 10;

/// Share of a ttl in which a beat must be answered: less than the time to the next.
const BEAT_PER_TTL: u32 = 12;

/// Checks in one transaction.
const CHECKS_MAX: usize = 500;

/// Bytes of the names in one transaction: a server closes the connection at a request longer than its jute.maxbuffer, by
/// default 1 MiB.
const CHECKED_BYTES_MAX: usize = 512 * 1024;

/// A hold that is looked at.
type Asked = (ClaimId, Created);

impl ZkSession {
    pub(crate) async fn beat(&self, held: &[Grant]) -> Beat {
        let asked: Vec<Asked> = held
            .iter()
            .filter_map(|grant| Some((grant.claim(), self.claims.get(grant.claim())?.own)))
            .collect();
        let window = self.request_timeout.min(self.ttl / BEAT_PER_TTL);
        let outcome = if asked.is_empty() {
            bounded(window, self.beat_idly(window)).await.map(|()| HashSet::new())
        } else {
            self.beat_holding(window, asked).await
        };
        let armed_at = self.server.proof.armed_at();
        let unknown = |fault: &Fault| Renewal::Unknown(fault.clone().into_error("renew"));
        let session = match &outcome {
            _ if self.server.life.is_over() => Renewal::Gone,
            Ok(_) => Renewal::Renewed { armed_at },
            Err(fault) => unknown(fault),
        };
        let hold = |grant: &Grant| match &outcome {
            _ if self.server.life.is_over() => Renewal::Gone,
            Ok(there) if !there.contains(&grant.claim()) => Renewal::Gone,
            Ok(_) => Renewal::Renewed { armed_at },
            Err(fault) => unknown(fault),
        };
        Beat::new(session, held.iter().map(|grant| (grant.claim(), hold(grant))).collect())
    }

    /// With nothing held, the client's own node is looked at.
    async fn beat_idly(&self, window: Duration) -> Result<(), Fault> {
        self.server.connected(window).await?;
        if self.server.check(&[&self.node]).await?.is_some() {
            // Somebody has tidied up.
            self.make_own_node().await?;
        }
        Ok(())
    }

    /// Which of these holds still have their nodes.
    async fn beat_holding(&self, window: Duration, asked: Vec<Asked>) -> Result<HashSet<ClaimId>, Fault> {
        bounded(window, async {
            self.server.connected(window).await?;
            let mut there = HashSet::new();
            for some in in_transactions(asked) {
                there.extend(self.look_for(some).await?);
            }
            Ok(there)
        })
        .await
    }

    async fn look_for(&self, mut asked: Vec<Asked>) -> Result<Vec<ClaimId>, Fault> {
        while !asked.is_empty() {
            let paths: Vec<&str> = asked.iter().map(|(_, own)| own.path.as_str()).collect();
            match self.server.check(&paths).await? {
                None => break,
                Some(gone) => drop(asked.remove(gone)),
            }
        }
        if self.layout.form.names_recur() {
            self.keep_own(&mut asked).await?;
        }
        Ok(asked.into_iter().map(|(id, _)| id).collect())
    }

    /// Where names recur, another one's node may stand there.
    async fn keep_own(&self, asked: &mut Vec<Asked>) -> Result<(), Fault> {
        let paths: Vec<String> = asked.iter().map(|(_, own)| own.path.clone()).collect();
        let mut found = self.server.data_of_all(&paths).await?.into_iter();
        asked.retain(|(_, own)| found.next().flatten().is_some_and(|(_, stat)| stat.czxid == own.czxid));
        Ok(())
    }

    /// Creates the client's own node, and the directories above it.
    pub(crate) async fn make_own_node(&self) -> Result<(), Fault> {
        for is_last in [false, true] {
            match self.server.create(&self.node, "", false).await {
                Err(fault) if fault.effect == Effect::Missing && !is_last => {
                    self.server.make_directory(&self.layout.clients()).await?;
                }
                Err(fault) if fault.effect != Effect::Exists => return Err(fault),
                _ => break,
            }
        }
        Ok(())
    }
}

/// Parts of which each fits into one transaction.
fn in_transactions(asked: Vec<Asked>) -> Vec<Vec<Asked>> {
    let mut parts: Vec<Vec<Asked>> = Vec::new();
    let mut room = 0;
    for hold in asked {
        let bytes = hold.1.path.len();
        match parts.last_mut() {
            Some(part) if part.len() < CHECKS_MAX && bytes <= room => {
                room -= bytes;
                part.push(hold);
            }
            _ => {
                room = CHECKED_BYTES_MAX.saturating_sub(bytes);
                parts.push(vec![hold]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(count: usize, path_bytes: usize) -> Vec<Asked> {
        let own = Created { path: "x".repeat(path_bytes), czxid: 1 };
        (0..count).map(|_| (ClaimId::random(), own.clone())).collect()
    }

    #[test]
    fn transactions_are_bounded_by_number_and_by_size() {
        let lengths = |asked| in_transactions(asked).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(holds(0, 10)), [0; 0]);
        assert_eq!(lengths(holds(1001, 10)), [500, 500, 1]);
        assert_eq!(lengths(holds(5, 200 * 1024)), [2, 2, 1]);
        assert_eq!(lengths(holds(2, CHECKED_BYTES_MAX + 1)), [1, 1]);
    }
}
