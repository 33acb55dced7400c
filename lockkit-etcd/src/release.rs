//! The end of a hold: its key goes, and the client that is next hears of it in the same transaction.
//!
//! Failure cases:
//!
//! * The reply is lost: the step is repeated; a key that has gone is a release that was done.
//! * The successor gives up or dies between the read and the transaction: the compare fails, the successor is read
//!   again. After a few rounds of that the hold ends without a mail; the successor watches its predecessor.
//! * The own key has another create revision than the hold: an operator deleted it, and a late copy of the enqueue
//!   brought it back. It is nobody's grant: it is taken away, never handed over.
//! * Only a transaction's answer says that the key has gone; the read for the successor may be stale.

use etcd_client::TxnResponse;
use lockkit_core::backend::Grant;

use crate::{
    claims::Place,
    error::Fault,
    keys::claim_of_key,
    session::EtcdSession,
    txn::{self, Contender, Left, Revision, contenders, revision_of},
};

/// Successors that are tried before a hold ends without telling anybody.
const SUCCESSORS_MAX: usize = 8;

impl EtcdSession {
    pub(crate) async fn release_grant(&self, grant: &Grant) -> Result<(), Fault> {
        let Some(place) = self.claims.get(grant.claim()) else { return Ok(()) };
        self.leave(&place).await?;
        self.claims.forget(grant.claim());
        Ok(())
    }

    /// Ends what this claim holds.
    pub(crate) async fn leave(&self, place: &Place) -> Result<(), Fault> {
        let Some(own) = place.own() else { return Err(Fault::nonsense("a hold without an entry")) };
        // Nobody behind, as far as is known: one request instead of two.
        let mut successor = if place.was_alone() { None } else { self.successor(place, own, true).await? };
        for _ in 0..SUCCESSORS_MAX {
            match self.leave_to(place, own, successor.as_ref()).await? {
                Left::Done | Left::Gone => return Ok(()),
                Left::Still(created) if created == own => {}
                Left::Still(_) => return self.take_away(place).await,
            }
            successor = self.successor(place, own, false).await?;
        }
        let fence = place.needs_fence();
        let answer = self.txn(txn::leave_untold(&self.claiming(place), own, fence)).await?;
        match txn::left(&answer)? {
            Left::Still(_) => self.take_away(place).await,
            Left::Done | Left::Gone => {
                self.after_removal(place, fence, &answer);
                Ok(())
            }
        }
    }

    async fn leave_to(
        &self,
        place: &Place,
        own: Revision,
        successor: Option<&Contender>,
    ) -> Result<Left, Fault> {
        let (claiming, fence) = (self.claiming(place), place.needs_fence());
        let txn = match successor {
            None => txn::leave_empty(&claiming, own, fence),
            Some(next) if next.lease != 0 && claim_of_key(&next.key).is_some() => {
                let mailbox = self.layout.client(next.lease).mailbox;
                txn::hand_over(&claiming, own, next, &mailbox, fence)
            }
            // A client of another kind reads no mail.
            Some(_) => txn::leave_untold(&claiming, own, fence),
        };
        let answer = self.txn(txn).await?;
        let left = txn::left(&answer)?;
        if left == Left::Done {
            self.after_removal(place, fence, &answer);
        }
        Ok(left)
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

    /// Takes the key away whatever it is.
    async fn take_away(&self, place: &Place) -> Result<(), Fault> {
        let fence = place.needs_fence();
        let answer = self.txn(txn::withdraw(&self.claiming(place), fence)).await?;
        self.after_removal(place, fence, &answer);
        Ok(())
    }

    /// Notes that the epoch has moved, when the transaction that took the key away did that too.
    pub(crate) fn after_removal(&self, place: &Place, fenced: bool, answer: &TxnResponse) {
        if fenced && let Ok(revision) = revision_of(answer.header()) {
            self.epoch.moved_to(revision);
            place.fenced();
        }
    }
}
