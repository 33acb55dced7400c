//! Heartbeats: one ping renews the lease, and one read shows which holds still have their keys: a list of the lease's keys,
//! or, if most of those are keys of waiters, the holds by name.
//!
//! Failure cases:
//!
//! * An operator deletes the key of a hold. It is missing among the lease's keys at the next heartbeat: the hold is
//!   lost.
//! * The store is restored from a backup. A key that exists may then be that of an earlier claim, which used it before
//!   the hold. A reply with a lower revision than an earlier one makes the heartbeat compare create revisions
//!   (`docs/decisions/0021-etcd-restored-from-a-backup.md`).
//! * A hold is pinned. Its key is not among the lease's keys, so it is read by name. Its hold is renewed for no longer
//!   than its key lives ([`pins`](super::powers)).
//! * Thousands of holds are read by name, because the list says nothing about them. One transaction after the other would
//!   take longer than a step, in every heartbeat, and all of them would be lost. So several are under way at a time.
//! * The store was full. The heartbeat makes up for the epoch bumps that it has refused ([`late_bump`](super::late_bump)).
//! * The server does not answer. Each step is bounded, so that a heartbeat ends before the next one; within a step, the
//!   request goes to other members too.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use lockkit_core::backend::{ClaimId, Grant, Renewal, Renewals};
use tracing::debug;

use super::{EtcdSession, entry::QueueEntry};
use crate::{
    error::{Effect, RequestError},
    forms::ExclusiveKey,
    wire::{self, Revision},
};

/// A step of a heartbeat may take the ttl divided by this. A heartbeat has two steps, and must end before the next one,
/// ttl / 3 later.
const HEARTBEAT_STEPS_PER_TTL: u32 = 7;

/// Entries that are read in one transaction: two keys each, if they have a guard (etcd's limit is 128 operations).
const ENTRIES_PER_READ: usize = 60;

/// Such transactions that are under way at a time.
const READS_AT_A_TIME: usize = 16;

impl EtcdSession {
    /// Renews the lease, and checks the keys of these holds. Both run at the same time.
    pub(crate) async fn heartbeat(&self, held: &[Grant]) -> Renewals {
        let step = self.heartbeat_step();
        let check =
            async { if held.is_empty() { Ok(HashSet::new()) } else { self.existing_holds(held).await } };
        let renew = async {
            let renewed = self.lease.renew(&self.server, step).await;
            if let Ok(armed_at) = renewed {
                self.end_pins(held, armed_at, step).await;
            }
            renewed
        };
        let (renewed, existing, ()) = tokio::join!(renew, check, self.bump_late(step));
        let (renewed, existing) = (self.end_if_lease_gone(renewed), self.end_if_lease_gone(existing));
        let unknown = |fault: &RequestError| Renewal::Unknown(fault.clone().into_error("renew"));
        let session = match &renewed {
            _ if self.state.is_over() => Renewal::Gone,
            Ok(armed_at) => Renewal::Renewed { armed_at: *armed_at },
            Err(fault) => unknown(fault),
        };
        let hold = |grant: &Grant| match (&renewed, &existing) {
            _ if self.state.is_over() => Renewal::Gone,
            (_, Ok(existing)) if !existing.contains(&grant.claim()) => Renewal::Gone,
            (Ok(armed_at), Ok(_)) => {
                Renewal::Renewed { armed_at: self.renewed_at_most(grant.claim(), *armed_at) }
            }
            (Err(fault), _) | (_, Err(fault)) => unknown(fault),
        };
        Renewals::new(session, held.iter().map(|grant| (grant.claim(), hold(grant))).collect())
    }

    fn heartbeat_step(&self) -> Duration {
        self.server.request_timeout().min(self.lease.ttl() / HEARTBEAT_STEPS_PER_TTL)
    }

    /// Returns the holds whose keys still exist.
    async fn existing_holds(&self, held: &[Grant]) -> Result<HashSet<ClaimId>, RequestError> {
        let step = self.heartbeat_step();
        let list = || async {
            // A list that confirms nothing, or mostly keys of waiters, is not requested.
            if self.is_single() || self.waits_more_than_it_holds(held) {
                return Ok(Vec::new());
            }
            self.lease.keys(&self.server).await
        };
        let listed: HashSet<Vec<u8>> = match self.server.repeat(step, list).await {
            Ok(keys) => keys.into_iter().collect(),
            // For example a list that is longer than a message may be.
            Err(fault) if fault.effect == Effect::Refused => HashSet::new(),
            Err(fault) => return Err(fault),
        };
        let (mut existing, mut unconfirmed) = (HashSet::new(), Vec::new());
        for grant in held {
            match self.claims.get(grant.claim()) {
                Some(entry) if self.shows_hold(&listed, &entry) => {
                    existing.insert(grant.claim());
                }
                Some(entry) => unconfirmed.push((grant.claim(), entry)),
                None => debug!(claim = ?grant.claim(), "heartbeat of a hold that was released"),
            }
        }
        // The list may be older than a grant that another member has answered, so only a linearizable read shows a
        // loss. In a restored store the key may be that of an earlier claim; its create revision shows that.
        let read = || async {
            let parts = unconfirmed.chunks(ENTRIES_PER_READ);
            let reads: Vec<_> = parts.map(|some| self.existing_by_revision(some)).collect();
            stream::iter(reads).buffer_unordered(READS_AT_A_TIME).try_collect::<Vec<Vec<ClaimId>>>().await
        };
        existing.extend(self.server.repeat(step, read).await?.into_iter().flatten());
        Ok(existing)
    }

    /// Returns whether one read of these holds by name costs less than the list of all keys of the lease.
    fn waits_more_than_it_holds(&self, held: &[Grant]) -> bool {
        held.len() <= ENTRIES_PER_READ && held.len() * 2 < self.claims.len()
    }

    /// Reads these entries; returns those that exist with the create revision of the hold.
    async fn existing_by_revision(
        &self,
        entries: &[(ClaimId, Arc<QueueEntry>)],
    ) -> Result<Vec<ClaimId>, RequestError> {
        let keys = entries.iter().flat_map(|(_, entry)| entry.keys_of_hold()).map(|(key, _)| key);
        let answer = self.server.txn(wire::read_keys(keys)).await?;
        let mut created = wire::create_revisions(&answer).into_iter();
        let mut is_of_hold = |own: Option<Revision>| {
            let created = created.next().flatten();
            created.is_some() && created == own
        };
        let mut existing = Vec::new();
        for (id, entry) in entries {
            // Every key takes its reply, also after one that differs.
            let differing = entry.keys_of_hold().filter(|(_, own)| !is_of_hold(*own)).count();
            existing.extend((differing == 0).then_some(*id));
        }
        Ok(existing)
    }

    /// Returns whether the list of the lease's keys shows that a hold has its keys. It does not show create revisions:
    /// a late copy of the enqueue, or of the create of a guard, may have created a deleted key again. So it shows nothing about a single key, which may
    /// be that of a later claim.
    fn shows_hold(&self, listed: &HashSet<Vec<u8>>, entry: &QueueEntry) -> bool {
        let has_all = entry.keys_of_hold().all(|(key, _)| listed.contains(key));
        let guard_in_doubt = entry.exclusive.as_ref().is_some_and(ExclusiveKey::is_in_doubt);
        has_all && !entry.has_unanswered() && !guard_in_doubt
    }
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::{acquire, fresh_name};
    use lockkit_core::backend::Session;

    use super::*;
    use crate::{
        Form,
        client::scripted::{Fate, Script},
        session::tests::{TTL, config, first, session, session_of},
    };

    /// The read alone proves it.
    #[tokio::test(start_paused = true)]
    async fn deleted_key_is_a_loss_also_if_the_lease_is_not_renewed() {
        let script = Script::default();
        let session = session(&script).await;
        let held = acquire(&session, &fresh_name()).await;
        script.mute_watches();
        script.delete(&script.keys("lockkit/test")[0]);
        script.rule(|call| if call.is("LeaseKeepAlive") { Fate::Lost } else { Fate::Served });
        let renewals = session.renew(&[held]).await;
        assert!(matches!(renewals.session, Renewal::Unknown(_)), "{renewals:?}");
        assert!(matches!(renewals.holds[0].1, Renewal::Gone), "{renewals:?}");
    }

    /// The list shows no create revisions, and a late copy may have created a deleted key again.
    #[tokio::test(start_paused = true)]
    async fn list_confirms_no_hold_with_a_copy_under_way() {
        let script = Script::default();
        let session = session_of(&script, &config(1).guard("guards/")).await;
        let held = acquire(&(session.clone() as Arc<dyn Session>), &fresh_name()).await;
        let entry = session.claims.get(held.claim()).unwrap();
        let listed: HashSet<_> = session.lease.keys(&session.server).await.unwrap().into_iter().collect();
        assert!(session.shows_hold(&listed, &entry));
        assert!(!session.shows_hold(&HashSet::from([entry.key.clone().into_bytes()]), &entry), "no guard");
        entry.enqueue_sent(1);
        assert!(!session.shows_hold(&listed, &entry));
        entry.enqueue_answered();
        assert!(session.shows_hold(&listed, &entry));
        entry.exclusive.as_ref().unwrap().put_in_doubt();
        assert!(!session.shows_hold(&listed, &entry));
    }

    /// Each key takes its own reply.
    #[tokio::test(start_paused = true)]
    async fn hold_whose_first_key_is_gone_ends_no_other_hold() {
        let (script, name) = (Script::default(), fresh_name());
        let session: Arc<dyn Session> = session_of(&script, &config(1).guard("guards/")).await;
        let held = [acquire(&session, &name).await, acquire(&session, &fresh_name()).await];
        script.delete(&script.keys(&format!("lockkit/{name}/"))[0]);
        // The list shows nothing, so both are read by name.
        let too_long = Fate::Refused(tonic::Code::OutOfRange, "message length too large");
        script.rule(first(1, "LeaseTimeToLive", too_long));
        let renewals = session.renew(&held).await;
        let [(_, gone), (_, kept)] = &renewals.holds[..] else { panic!("{renewals:?}") };
        assert!(matches!(gone, Renewal::Gone) && matches!(kept, Renewal::Renewed { .. }), "{renewals:?}");
    }

    /// No list confirms a single key, so the read by name is all there is.
    #[tokio::test(start_paused = true)]
    async fn read_of_the_holds_without_a_reply_takes_one_step() {
        let (script, long) = (Script::default(), config(1).form(Form::Single).request_timeout(TTL));
        let session: Arc<dyn Session> = session_of(&script, &long).await;
        let held = acquire(&session, &fresh_name()).await;
        script.rule(|call| if call.is("Txn") { Fate::Lost } else { Fate::Served });
        let since = tokio::time::Instant::now();
        let renewals = session.renew(&[held]).await;
        assert!(matches!(renewals.holds[0].1, Renewal::Unknown(_)), "{renewals:?}");
        let step = TTL / HEARTBEAT_STEPS_PER_TTL;
        assert!(since.elapsed() <= step + Duration::from_millis(1), "{:?}", since.elapsed());
    }

    /// One after the other, the reads of thousands of holds would not end before the next heartbeat.
    #[tokio::test(start_paused = true)]
    async fn reads_of_many_holds_do_not_wait_for_each_other() {
        let (script, single) = (Script::default(), config(1).form(Form::Single));
        let session: Arc<dyn Session> = session_of(&script, &single).await;
        let mut held = Vec::new();
        for _ in 0..=READS_AT_A_TIME * ENTRIES_PER_READ {
            held.push(acquire(&session, &fresh_name()).await);
        }
        let renewals = session.renew(&held).await;
        let is_renewed = |renewal: &Renewal| matches!(renewal, Renewal::Renewed { .. });
        assert!(renewals.holds.iter().all(|(_, renewal)| is_renewed(renewal)), "{renewals:?}");
        script.rule(|call| if call.is("Txn") { Fate::Lost } else { Fate::Served });
        script.take_calls();
        session.renew(&held).await;
        assert_eq!(script.count("Txn"), READS_AT_A_TIME);
    }
}
