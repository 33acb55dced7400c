//! The claims of one session: what is known of each, from its first request to its confirmed end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockkit_core::{FencingToken, backend::ClaimId};
use tokio::sync::watch;

use crate::{keys::Queue, mail::Mail, txn::Revision};

/// All claims of a session that may have a key at the server.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<ClaimId, Arc<Place>>,
    by_key: HashMap<String, Arc<Place>>,
}

impl Claims {
    /// Notes a claim before its first request is sent: mail for it may be here before the reply.
    pub(crate) fn enter(&self, id: ClaimId, queue: Queue, key: String) -> Arc<Place> {
        let place = Arc::new(Place { queue, key: key.clone(), progress: watch::Sender::default() });
        let mut table = self.lock();
        table.by_id.insert(id, Arc::clone(&place));
        table.by_key.insert(key, Arc::clone(&place));
        place
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<Place>> {
        self.lock().by_id.get(&id).cloned()
    }

    /// Forgets a claim of which nothing is left at the server.
    pub(crate) fn forget(&self, id: ClaimId) {
        let mut table = self.lock();
        if let Some(place) = table.by_id.remove(&id) {
            table.by_key.remove(&place.key);
        }
    }

    /// Hands a mail to the claim that has this key; the claim finds out whether it is meant.
    pub(crate) fn deliver(&self, mail: &Mail, revision: Revision) {
        let place = self.lock().by_key.get(&mail.key).cloned();
        if let Some(place) = place {
            place.deliver(mail.created, revision);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One claim's place in its queue, as far as it is known.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) queue: Queue,
    pub(crate) key: String,
    progress: watch::Sender<Progress>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The create revision of the claim's key, once a reply has told it.
    own: Option<Revision>,
    /// Copies of the enqueue that were sent and not answered: each may still be executed.
    unanswered: u32,
    /// A request that names the key may still be executed, or was once in doubt.
    in_doubt: bool,
    /// The newest mail that came before `own` was known: the create revision that it names, and its own revision.
    early_mail: Option<(Revision, Revision)>,
    /// The revision of the first proof that the claim holds the lock.
    granted: Option<Revision>,
    /// Nobody was behind the claim when it was granted.
    alone: bool,
    /// The revision at which the predecessor's key was deleted, until somebody has looked; 0 when only a look can tell.
    predecessor_gone: Option<Revision>,
}

impl Progress {
    /// The transaction that put this mail has proved that the key was there with this create revision, and first. With
    /// another one it was about an earlier claim that had the key.
    fn take_mail(&mut self, created: Revision, revision: Revision) -> bool {
        let counts = self.granted.is_none() && self.own == Some(created);
        if counts {
            self.granted = Some(revision);
        }
        counts
    }
}

impl Place {
    /// A copy of the enqueue is about to be sent.
    pub(crate) fn sending(&self) {
        self.progress.send_modify(|progress| progress.unanswered += 1);
    }

    /// A copy was answered, or never sent.
    pub(crate) fn answered(&self) {
        self.progress.send_modify(|progress| progress.unanswered -= 1);
    }

    /// No copy can be executed any more: the epoch has moved.
    pub(crate) fn fenced(&self) {
        self.progress.send_modify(|progress| progress.unanswered = 0);
    }

    /// Whether a copy of the enqueue may still be executed.
    pub(crate) fn needs_fence(&self) -> bool {
        self.progress.borrow().unanswered > 0
    }

    /// A request that names the key was not answered: it may be executed at any later time.
    pub(crate) fn put_in_doubt(&self) {
        self.progress.send_modify(|progress| progress.in_doubt = true);
    }

    /// Whether another claim must not use the key.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.progress.borrow().in_doubt
    }

    /// Notes the create revision that an answer to the enqueue has told.
    pub(crate) fn created(&self, own: Revision) {
        self.progress.send_modify(|progress| {
            progress.own = Some(own);
            if let Some((created, revision)) = progress.early_mail.take() {
                progress.take_mail(created, revision);
            }
        });
    }

    pub(crate) fn own(&self) -> Option<Revision> {
        self.progress.borrow().own
    }

    /// Notes a proof that the claim is first; answers the token, which the first proof has fixed.
    pub(crate) fn granted(&self, revision: Revision, alone: bool) -> FencingToken {
        let mut counts = revision;
        self.progress.send_modify(|progress| {
            if progress.granted.is_none() {
                progress.alone = alone;
            }
            counts = *progress.granted.get_or_insert(revision);
        });
        token(counts)
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.progress.borrow().granted.map(token)
    }

    /// Whether nobody was behind the claim when it was granted.
    pub(crate) fn was_alone(&self) -> bool {
        self.progress.borrow().alone
    }

    fn deliver(&self, created: Revision, revision: Revision) {
        self.progress.send_if_modified(|progress| {
            if progress.own.is_none() {
                progress.early_mail = progress.early_mail.max(Some((created, revision)));
                return false;
            }
            progress.take_mail(created, revision)
        });
    }

    /// The predecessor's key was deleted at this revision (0: perhaps, and before this moment): a reason to look.
    pub(crate) fn predecessor_gone(&self, revision: Revision) {
        self.progress.send_modify(|progress| {
            progress.predecessor_gone = Some(progress.predecessor_gone.unwrap_or(0).max(revision));
        });
    }

    /// Waits for a mail or another proof.
    pub(crate) async fn when_granted(&self) -> FencingToken {
        token(self.when(|progress| progress.granted).await)
    }

    /// Waits for news of the predecessor's end, and takes them.
    pub(crate) async fn when_predecessor_gone(&self) -> Revision {
        let revision = self.when(|progress| progress.predecessor_gone).await;
        self.progress.send_modify(|progress| progress.predecessor_gone = None);
        revision
    }

    async fn when(&self, answer: impl Fn(&Progress) -> Option<Revision>) -> Revision {
        let mut changes = self.progress.subscribe();
        loop {
            if let Some(revision) = answer(&changes.borrow_and_update()) {
                return revision;
            }
            // Its sender is this very place: it cannot be closed.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// A revision is never negative.
fn token(revision: Revision) -> FencingToken {
    FencingToken::new(revision.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::keys::{Layout, Names};

    fn claims_with_one() -> (Claims, Arc<Place>) {
        let claims = Claims::default();
        let queue = Layout::new("", Names::Encoded).queue(&LockName::new("x").unwrap()).unwrap();
        let id = ClaimId::random();
        let key = queue.key(7, id);
        let place = claims.enter(id, queue, key);
        (claims, place)
    }

    fn mail(place: &Place, created: Revision) -> Mail {
        Mail { key: place.key.clone(), created }
    }

    #[test]
    fn the_first_proof_fixes_the_token() {
        let (claims, place) = claims_with_one();
        place.created(10);
        claims.deliver(&mail(&place, 10), 20);
        claims.deliver(&mail(&place, 10), 30);
        assert_eq!(place.granted(40, true), FencingToken::new(20));
        assert!(!place.was_alone());
    }

    #[test]
    fn a_mail_before_the_reply_waits_for_it() {
        let (claims, place) = claims_with_one();
        claims.deliver(&mail(&place, 10), 20);
        assert_eq!(place.token(), None);
        place.created(10);
        assert_eq!(place.token(), Some(FencingToken::new(20)));
    }

    #[test]
    fn mail_for_an_earlier_claim_or_another_key_is_ignored() {
        let (claims, place) = claims_with_one();
        claims.deliver(&mail(&place, 8), 20);
        place.created(10);
        claims.deliver(&mail(&place, 9), 20);
        claims.deliver(&Mail { key: format!("y{}", place.key), created: 10 }, 20);
        assert_eq!(place.token(), None);
        let ids: Vec<ClaimId> = claims.lock().by_id.keys().copied().collect();
        claims.forget(ids[0]);
        claims.deliver(&mail(&place, 10), 20);
        assert_eq!(place.token(), None);
    }
}
