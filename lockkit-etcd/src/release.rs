//! The end of a hold: its key goes, and the client that is next hears of it in the same transaction.
//!
//! Failure cases:
//!
//! * The reply is lost: the step is repeated; a key that has gone is a release that was done.
//! * The successor gives up or dies between the read and the transaction: the compare fails, the successor is read
//!   again. After a few rounds of that the hold ends without a mail; the successor watches its predecessor.
//! * The own key has another create revision than the hold: an operator deleted it, and a late copy of the enqueue
//!   brought it back. It is nobody's grant: it is taken away, never handed over. Where no copy has come yet but one
//!   still may, the epoch is moved all the same.
//! * The server refuses it for good (the user's rights or its password have changed): the session ends, and the lock with
//!   the lease, one ttl after its last renewal.
//! * Only a transaction's answer says that the key has gone; the read for the successor may be stale.

use etcd_client::Txn;
use lockkit_core::backend::Grant;
use tracing::debug;

use crate::{
    claims::Place,
    error::{Effect, Fault},
    session::EtcdSession,
    txn::{self, Contender, Left, Revision, contenders, revision_of},
};

/// Successors that are tried before a hold ends without telling anybody.
const SUCCESSORS_MAX: usize = 8;

impl EtcdSession {
    pub(crate) async fn release_grant(&self, grant: &Grant) -> Result<(), Fault> {
        let Some(place) = self.claims.get(grant.claim()) else { return Ok(()) };
        let left = self.leave(&place).await;
        if let Err(fault) = &left
            && !fault.may_pass()
        {
            // Repeated, it would be refused again, and the lease would keep the lock as long as it is renewed.
            debug!(?fault, claim = ?grant.claim(), "cannot be released; the session is given up");
            self.life.lose();
        }
        left?;
        self.forget(grant.claim(), &place);
        Ok(())
    }

    /// Ends what this claim holds.
    pub(crate) async fn leave(&self, place: &Place) -> Result<(), Fault> {
        let Some(own) = place.own() else { return Err(Fault::nonsense("a hold without an entry")) };
        let (claiming, fence) = (self.claiming(place), place.needs_fence());
        // Nobody behind, as far as is known: one request instead of two.
        let mut next = if place.was_alone() { None } else { self.successor(place, own, true).await? };
        for _ in 0..SUCCESSORS_MAX {
            let left = match &next {
                None => Some(self.take_away(place, txn::leave_empty(&claiming, own, fence), fence).await?),
                Some(next) => self.hand_over(place, own, next, fence).await?,
            };
            match left {
                None => break,
                Some(Left::Still(created)) if created == own => {}
                Some(left) => return self.finish(place, left, fence).await,
            }
            next = self.successor(place, own, false).await?;
        }
        let left = self.take_away(place, txn::leave_untold(&claiming, own, fence), fence).await?;
        self.finish(place, left, fence).await
    }

    /// Ends the hold with a mail; `None` when the next client cannot be told: it is of another kind, or its mailbox
    /// takes no mail (no room for writes, no permission, a lease that ended without its keys).
    async fn hand_over(
        &self,
        place: &Place,
        own: Revision,
        next: &Contender,
        fence: bool,
    ) -> Result<Option<Left>, Fault> {
        let Some(client) = next.client() else { return Ok(None) };
        let txn = txn::hand_over(&self.claiming(place), own, next, &client, fence);
        match self.take_away(place, txn, fence).await {
            Err(fault) if matches!(fault.effect, Effect::Refused | Effect::LeaseGone) => Ok(None),
            left => left.map(Some),
        }
    }

    /// Who is next. Any member may answer, also one that lags behind: a wrong answer fails a compare.
    async fn successor(
        &self,
        place: &Place,
        own: Revision,
        may_be_stale: bool,
    ) -> Result<Option<Contender>, Fault> {
        let mut options = txn::successor_of(own);
        if may_be_stale {
            options = options.with_serializable();
        }
        let read = self.server.range(place.queue.as_str(), options);
        Ok(contenders(&self.life.unless_over(read).await?).into_iter().next())
    }

    /// The key is gone, or is not that of the hold.
    async fn finish(&self, place: &Place, left: Left, fence: bool) -> Result<(), Fault> {
        // Also for a key that somebody else has taken away: a copy of its enqueue that is still on its way would bring it
        // back, for nobody.
        if fence && left == Left::Gone || matches!(left, Left::Still(_)) {
            self.take_away(place, txn::withdraw(&self.claiming(place), fence), fence).await?;
        }
        Ok(())
    }

    /// Executes one of the transactions that take a claim's key away.
    pub(crate) async fn take_away(&self, place: &Place, txn: Txn, fence: bool) -> Result<Left, Fault> {
        let answer = self.life.unless_over(self.server.txn(txn)).await;
        if answer.as_ref().is_err_and(Fault::leaves_doubt) {
            place.put_in_doubt();
        }
        let answer = answer?;
        let left = txn::left(&answer)?;
        if fence && left == Left::Done {
            self.epoch.moved_to(revision_of(answer.header())?);
            place.fenced();
        }
        Ok(left)
    }
}
