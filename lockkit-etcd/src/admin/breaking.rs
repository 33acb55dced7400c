//! Ends a hold from outside, as its release would: one transaction deletes its keys and hands the lock off to the next
//! client. It compares the create revisions, so it ends the hold that an operator has seen or none.
//!
//! Failure cases:
//!
//! * The hold ended meanwhile, and perhaps the same client acquired the lock again. The keys have other create
//!   revisions: nothing is done.
//! * The reply is lost. The caller gets `Unavailable`. If it breaks again, the keys are gone or have other revisions.
//! * The next client gives up or dies between the read and the transaction. The compare fails, and the keys are read
//!   again. After [`HANDOFFS_MAX`] attempts the hold ends without a handoff; the waiters watch its keys.
//! * The holder learns of it by its client's key `broken`, which the same transaction puts if the client is alive. If
//!   that event is lost, its next heartbeat finds the keys gone. The latter is the only way for a holder of
//!   [`Form::Rpc`](crate::Form::Rpc), which watches nothing. A program of another kind is not notified.
//! * The holder is pinned. Its key goes all the same; the lease of the pin expires without keys.
//! * A copy of the holder's enqueue is still under way, and creates its key again. That client has a hold with another
//!   create revision: its heartbeat finds the loss, and its release deletes the key ([`release`](crate::session::release)).
//! * The server takes no new data (no space), or the operator may not write the keys of other clients. Then the keys are
//!   deleted and nothing is put. If they are gone by then, either the refused transaction was executed (see
//!   [`Effect::Full`](crate::error::Effect)) or the hold has ended by itself: the caller gets `Unavailable`.

use lockkit_core::backend::Contender;
use tracing::debug;

use super::lock_keys::{FoundKeys, Holder, LockKeys};
use crate::{
    broken::BrokenHold,
    call::Server,
    client::{Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp},
    error::RequestError,
    keys::{ClientKeys, Layout},
    wire::{self, QueuedKey},
};

/// Attempts with a handoff before a hold ends without one.
const HANDOFFS_MAX: usize = 8;

/// Attempts in all. Without a handoff, one fails only if the hold itself has changed.
const ATTEMPTS_MAX: usize = 16;

/// Keys of the queue that are read: the holder's and the next one.
const FIRST_TWO: i64 = 2;

/// Ends the hold of this contender. Returns whether it was the holder.
pub(super) async fn break_hold(
    server: &Server,
    layout: &Layout,
    keys: &LockKeys,
    contender: &Contender,
) -> Result<bool, RequestError> {
    let (mut handoffs, mut doubt) = (HANDOFFS_MAX, None);
    for _ in 0..ATTEMPTS_MAX {
        let found = keys.read(server, FIRST_TWO).await?;
        let Some(hold) = found.hold_of(contender, layout) else { return doubt.map_or(Ok(false), Err) };
        let txn = if handoffs > 0 { hold.removal_with_handoff() } else { hold.removal() };
        match server.txn(txn).await {
            Ok(answer) if answer.succeeded() => return Ok(true),
            // The holder's keys have changed: the next read returns. Or the next client's.
            Ok(_) => handoffs = handoffs.saturating_sub(1),
            Err(fault) if handoffs > 0 && fault.asks_for_less() => {
                debug!(?fault, "breaking the hold without a handoff");
                handoffs = 0;
                doubt = Some(fault).filter(RequestError::is_in_doubt);
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(RequestError::busy("the contenders of the lock keep changing"))
}

/// A hold that is to end.
struct Hold<'a> {
    /// The key whose creation was the grant.
    decides: &'a KeyValue,
    /// The key in the queue, if another one decides.
    queued: Option<&'a KeyValue>,
    client: Option<ClientKeys>,
    next: Option<QueuedKey>,
}

impl FoundKeys {
    /// Returns the hold of this contender, if it is the holder.
    fn hold_of(&self, contender: &Contender, layout: &Layout) -> Option<Hold<'_>> {
        let holder = self.holder()?;
        let shown = self.contender_of(&holder);
        if shown.token.is_none() || (&shown.entry, shown.token) != (&contender.entry, contender.token) {
            return None;
        }
        let next = holder.waiters(&self.queued).first().map(QueuedKey::from_kv);
        Some(match holder {
            Holder::Queued { first, decides } => {
                let decides = decides?;
                let queued = (first.key() != decides.key()).then_some(first);
                Hold { decides, queued, client: QueuedKey::from_kv(first).client(), next }
            }
            // Our waiters watch the key; the first of them has its place, and no handoff to wait for.
            Holder::Exclusive(key) => {
                let client = (key.lease() > 0).then(|| layout.client(key.lease()));
                Hold { decides: key, queued: None, client, next: None }
            }
        })
    }
}

impl Hold<'_> {
    /// Deletes the keys of the hold, and nothing else.
    fn removal(&self) -> Txn {
        Txn::new().when(self.is_held()).and_then(self.deletions())
    }

    /// Returns the transaction of [`removal`](Self::removal), with a handoff to the next client and a notification of
    /// the holder's client.
    fn removal_with_handoff(&self) -> Txn {
        let (mut compares, mut operations) = (self.is_held(), self.deletions());
        if let Some(next) = &self.next {
            compares.push(exists(&next.key, next.created));
            operations.extend(next.client().map(|client| wire::put_handoff(next, Vec::new(), &client)));
        }
        operations.extend(self.notification());
        Txn::new().when(compares).and_then(operations)
    }

    fn keys(&self) -> impl Iterator<Item = &KeyValue> {
        std::iter::once(self.decides).chain(self.queued)
    }

    fn is_held(&self) -> Vec<Compare> {
        self.keys().map(|kv| exists(kv.key(), kv.create_revision())).collect()
    }

    fn deletions(&self) -> Vec<TxnOp> {
        self.keys().map(|kv| TxnOp::delete(kv.key())).collect()
    }

    /// Returns the operation that notifies the holder's client, if it is alive. The key has the client's lease, so it ends
    /// with that client.
    fn notification(&self) -> Option<TxnOp> {
        let client = self.client.as_ref()?;
        let key = str::from_utf8(self.decides.key()).ok()?.to_owned();
        let broken = BrokenHold { key, created: self.decides.create_revision() };
        let is_alive = Compare::create_revision(&*client.epoch, CompareOp::Greater, 0);
        let options = PutOptions::new().with_lease(client.lease);
        let put = TxnOp::put(&*client.broken, broken.to_json(), Some(options));
        Some(TxnOp::txn(Txn::new().when([is_alive]).and_then([put])))
    }
}

fn exists(key: &[u8], created: wire::Revision) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, created)
}
