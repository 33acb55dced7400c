//! One text per lock that only its holder can write, in a key of its own.
//!
//! Failure cases:
//!
//! * The hold has ended. The transaction compares the create revision of its key, and writes nothing.
//! * The reply is lost, or a copy arrives late. Each write replaces the record that it has read, by its mod revision,
//!   so a copy does nothing once a later write has been answered.
//! * The reply to the grant of the record's lease is lost, or the record is not written. The lease has no key, and
//!   expires after the time that the record was to be kept.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    LockName, Result,
    backend::{Grant, Records},
    lease,
};

use crate::{
    client::{GetOptions, KeyValue},
    error::RequestError,
    keys::LeaseId,
    lease::{Lease, revoke_unused},
    session::{EtcdSession, entry::QueueEntry},
    wire::{self, Record, Revision},
};

/// How often a write is repeated because the record has changed since it was read.
const WRITES_MAX: usize = 8;

impl EtcdSession {
    async fn read_record(&self, name: &LockName) -> Result<Option<String>, RequestError> {
        let key = self.layout.record(name);
        let answer = self.state.unless_over(self.server.range(&key, GetOptions::new())).await?;
        let text = |kv: &KeyValue| kv.value_str().map(str::to_owned);
        answer
            .kvs()
            .first()
            .map(text)
            .transpose()
            .map_err(|_| RequestError::unexpected("a record that is not UTF-8"))
    }

    async fn write_record(&self, grant: &Grant, record: &str, keep: Duration) -> Result<bool, RequestError> {
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(false) };
        // The lease is older than the record, by the time that the requests take.
        let ttl = lease::ttl_lasting(keep).saturating_add(2 * self.server.request_timeout());
        let lease = self.state.unless_over(self.lease.another(&self.server, ttl)).await?;
        let written = self.replace_record(grant.name(), &entry, record, &lease).await;
        let unused = match &written {
            Ok(Some(before)) => *before,
            Ok(None) => lease.id(),
            Err(error) if error.in_doubt => 0,
            Err(_) => lease.id(),
        };
        if unused != 0 {
            // If this fails, it expires.
            let _ = revoke_unused(&self.server, unused).await;
        }
        written.map(|before| before.is_some()).map_err(|error| error.fault)
    }

    /// Replaces the record. Returns the lease of the one before (0: there is none), or `None` if the lock is not held.
    async fn replace_record(
        &self,
        name: &LockName,
        entry: &QueueEntry,
        value: &str,
        lease: &Lease,
    ) -> Result<Option<LeaseId>, WriteError> {
        let Some(own) = entry.own_revision() else { return Ok(None) };
        let key = self.layout.record(name);
        for _ in 0..WRITES_MAX {
            let before = self.state.unless_over(self.server.range(&key, GetOptions::new())).await;
            // Every write before this read was answered.
            let before = before.map_err(|fault| WriteError { fault, in_doubt: false })?;
            let (replaces, unused): (Revision, LeaseId) =
                before.kvs().first().map_or((0, 0), |kv| (kv.mod_revision(), kv.lease()));
            let record = Record { key: &key, value, lease: lease.id(), replaces };
            let answer =
                self.state.unless_over(self.server.txn(wire::write_record(&entry.key, own, &record))).await?;
            if answer.succeeded() {
                return Ok(Some(unused));
            }
            if wire::found_instead(&answer)?.is_none_or(|kv| kv.create_revision() != own) {
                return Ok(None);
            }
        }
        Err(RequestError::busy("others keep changing the record of the lock").into())
    }
}

/// The error of a write, and whether the record may have been written or may still be.
struct WriteError {
    fault: RequestError,
    in_doubt: bool,
}

impl From<RequestError> for WriteError {
    fn from(fault: RequestError) -> Self {
        Self { in_doubt: fault.is_in_doubt(), fault }
    }
}

#[async_trait]
impl Records for EtcdSession {
    async fn read(&self, name: &LockName) -> Result<Option<String>> {
        let read = self.read_record(name).await;
        read.map_err(|fault| fault.into_error("read the record").with_lock(name))
    }

    async fn write(&self, grant: &Grant, record: &str, keep: Duration) -> Result<bool> {
        let written = self.write_record(grant, record, keep).await;
        written.map_err(|fault| fault.into_error("write the record").with_lock(grant.name()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkit_conformance::direct::{acquire, fresh_name};
    use lockkit_core::backend::Session;

    use super::*;
    use crate::{
        client::scripted::{Fate, Script},
        session::tests::{TTL, before_each_txn, queue_session},
    };

    /// Returns a session at a scripted server, and its hold.
    async fn held(script: &Script) -> (Arc<EtcdSession>, Grant) {
        let session = queue_session(script).await;
        let held = acquire(&(session.clone() as Arc<dyn Session>), &fresh_name()).await;
        (session, held)
    }

    /// Nothing was sent that could write it.
    #[tokio::test(start_paused = true)]
    async fn write_whose_read_is_not_answered_leaves_no_lease() {
        let script = Script::default();
        let (session, held) = held(&script).await;
        let leases = script.leases();
        script.rule(|call| if call.is("Range") { Fate::Lost } else { Fate::Served });
        session.write(&held, "text", TTL).await.unwrap_err();
        assert_eq!(script.leases(), leases);
    }

    /// Others may write it without a lock.
    #[tokio::test(start_paused = true)]
    async fn record_that_keeps_changing_is_given_up_and_leaves_no_lease() {
        let script = Script::default();
        let (session, held) = held(&script).await;
        let leases = script.leases();
        let (changing, record) = (script.clone(), session.layout.record(held.name()));
        script.take_calls();
        script.rule(before_each_txn(move || changing.put(&record, "of an operator")));
        session.write(&held, "text", TTL).await.unwrap_err();
        assert_eq!((script.count("Txn"), script.leases()), (WRITES_MAX, leases));
        script.serve();
    }

    /// They would be deleted with it.
    #[tokio::test(start_paused = true)]
    async fn lease_of_a_replaced_record_stays_if_another_program_has_attached_keys() {
        let script = Script::default();
        let (session, held) = held(&script).await;
        assert!(session.write(&held, "first", TTL).await.unwrap());
        let record = session.layout.record(held.name());
        let read = session.server.range(&record, GetOptions::new()).await.unwrap();
        script.put_leased("of/another", "", read.kvs()[0].lease());
        assert!(session.write(&held, "second", TTL).await.unwrap());
        assert_eq!(script.keys("of/"), ["of/another"]);
    }
}
