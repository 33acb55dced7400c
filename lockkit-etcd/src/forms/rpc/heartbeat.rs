//! Heartbeats: one ping for each lease, and one read of the keys of the holds.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use lockkit_core::{
    backend::{ClaimId, Grant, Renewal, Renewals},
    support::SessionOver,
};

use super::{RpcClaim, RpcSession, wire::ping};
use crate::{
    error::{Effect, RequestError},
    wire,
};

/// A heartbeat may take the ttl divided by this. It must end before the next one, ttl / 3 later.
const HEARTBEAT_SHARE_OF_TTL: u32 = 4;

/// Keys that are read in one transaction (etcd's limit is 128 operations).
const KEYS_PER_READ: usize = 100;

impl RpcSession {
    /// Renews the leases of these holds and of all waiting claims, and checks the keys of the holds.
    pub(super) async fn heartbeat(&self, held: &[Grant]) -> Renewals {
        if self.state.is_over() {
            let closed = || RequestError::from(SessionOver).into_error("renew");
            let holds = held.iter().map(|grant| (grant.claim(), Renewal::Unknown(closed()))).collect();
            return Renewals::new(Renewal::Unknown(closed()), holds);
        }
        self.forget_expired();
        let armed_at = self.clock.now();
        let check = async {
            if held.is_empty() {
                ping(&self.server, self.heartbeat_step()).await.map(|()| Vec::new())
            } else {
                self.existing_holds(held).await
            }
        };
        let (mut renewed, existing) = tokio::join!(self.renew_leases(held), check);
        self.note_heartbeat(existing.is_ok());
        let unknown = |fault: &RequestError| Renewal::Unknown(fault.clone().into_error("renew"));
        let session = match &existing {
            Ok(_) => Renewal::Renewed { armed_at },
            Err(fault) => unknown(fault),
        };
        let mut hold = |grant: &Grant| match (renewed.remove(&grant.claim()), &existing) {
            // Its lease was not renewed: it is released, or being released.
            (None | Some(Ok(Renewal::Gone)), _) => Renewal::Gone,
            (_, Ok(existing)) if !existing.contains(&grant.claim()) => Renewal::Gone,
            (Some(Ok(renewal)), Ok(_)) => renewal,
            (Some(Err(fault)), _) => unknown(&fault),
            (_, Err(fault)) => unknown(fault),
        };
        let holds = held.iter().map(|grant| (grant.claim(), hold(grant))).collect();
        Renewals::new(session, holds)
    }

    /// Renews the leases of these holds and of all waiting claims. Returns whether each hold's lease was renewed.
    async fn renew_leases(&self, held: &[Grant]) -> HashMap<ClaimId, Result<Renewal, RequestError>> {
        let is_held = |id: &ClaimId| held.iter().any(|grant| grant.claim() == *id);
        let due: Vec<_> = {
            let claims = self.table();
            let waits = |entry: &RpcClaim| entry.created.get().is_none();
            let wants_it = |id: &ClaimId, entry: &RpcClaim| waits(entry) || is_held(id);
            let due = claims.iter().filter(|(id, entry)| !entry.has_ended() && wants_it(id, entry));
            due.map(|(id, entry)| (*id, Arc::clone(entry))).collect()
        };
        let step = self.heartbeat_step();
        let renewals = due.iter().map(|(id, entry)| async move {
            let renewed = match entry.lease.renew(&self.server, step).await {
                Ok(armed_at) => Ok(Renewal::Renewed { armed_at }),
                Err(fault) if fault.effect == Effect::LeaseGone => Ok(Renewal::Gone),
                Err(fault) => Err(fault),
            };
            (*id, renewed)
        });
        join_all(renewals).await.into_iter().collect()
    }

    /// Returns the holds whose keys exist with the create revision of the grant.
    async fn existing_holds(&self, held: &[Grant]) -> Result<Vec<ClaimId>, RequestError> {
        let entries: Vec<_> = {
            let claims = self.table();
            held.iter()
                .filter_map(|grant| Some((grant.claim(), claims.get(&grant.claim()).cloned()?)))
                .collect()
        };
        let read = || async {
            let mut existing = Vec::new();
            for some in entries.chunks(KEYS_PER_READ) {
                let keys = some.iter().map(|(_, entry)| entry.key.as_slice());
                let answer = self.server.txn(wire::read_keys(keys)).await?;
                for ((id, entry), created) in some.iter().zip(wire::create_revisions(&answer)) {
                    let is_own = created.is_some() && created.as_ref() == entry.created.get();
                    existing.extend(is_own.then_some(*id));
                }
            }
            Ok(existing)
        };
        self.server.repeat(self.heartbeat_step(), read).await
    }

    fn heartbeat_step(&self) -> Duration {
        self.server.request_timeout().min(self.ttl / HEARTBEAT_SHARE_OF_TTL)
    }
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::{acquire, fresh_name};
    use lockkit_core::backend::Renewal;

    use crate::{client::scripted::Fate, forms::rpc::tests::scripted};

    /// An operator may have deleted its key.
    #[tokio::test(start_paused = true)]
    async fn hold_whose_key_was_not_read_is_not_confirmed_by_its_lease() {
        let (script, session) = scripted().await;
        let held = acquire(&session, &fresh_name()).await;
        script.rule(|call| if call.is("Txn") { Fate::Lost } else { Fate::Served });
        let renewals = session.renew(&[held]).await;
        assert_eq!(script.count("LeaseKeepAlive"), 1);
        assert!(matches!(renewals.holds[0].1, Renewal::Unknown(_)), "{renewals:?}");
    }
}
