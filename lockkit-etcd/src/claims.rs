//! The claims of one session: what is known of each, from its first request to its confirmed end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockkit_core::{FencingToken, backend::ClaimId};
use tokio::sync::watch;

use crate::{
    keys::{Queue, claim_of_key},
    mail::Mail,
    txn::Revision,
};

/// All claims of a session that may have a key at the server.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<ClaimId, Arc<Place>>>);

impl Claims {
    /// Notes a claim before its first request is sent: mail for it may be here before the reply.
    pub(crate) fn enter(&self, id: ClaimId, queue: Queue, key: String) -> Arc<Place> {
        let place = Arc::new(Place { queue, key, progress: watch::Sender::default() });
        self.lock().insert(id, Arc::clone(&place));
        place
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<Place>> {
        self.lock().get(&id).cloned()
    }

    /// Forgets a claim of which nothing is left at the server.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    /// Hands a mail to its claim; one for a claim that has ended is late and without meaning.
    pub(crate) fn deliver(&self, mail: &Mail, revision: Revision) {
        let place = claim_of_key(&mail.key).and_then(|id| self.get(id));
        if let Some(place) = place.filter(|place| place.key == mail.key) {
            place.deliver(mail.created, revision);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Place>>> {
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
    /// The create revision of the claim's key, once a reply or a mail has told it.
    own: Option<Revision>,
    /// Copies of the enqueue that were sent and not answered: each may still be executed.
    unanswered: u32,
    /// The revision of the first proof that the claim holds the lock.
    granted: Option<Revision>,
    /// Nobody was behind the claim when it was granted.
    alone: bool,
    /// The revision at which the predecessor's key was deleted, until somebody has looked; 0 when only a look can tell.
    predecessor_gone: Option<Revision>,
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

    /// Notes the create revision, unless a mail was faster; answers the one that counts.
    pub(crate) fn created(&self, own: Revision) -> Revision {
        let mut counts = own;
        self.progress.send_modify(|progress| counts = *progress.own.get_or_insert(own));
        counts
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

    /// The transaction that put this mail has proved that the key of this create revision is alive and first. A mail
    /// for another one is about a key that has gone since.
    fn deliver(&self, created: Revision, revision: Revision) {
        self.progress.send_if_modified(|progress| {
            let counts = progress.granted.is_none() && progress.own.is_none_or(|own| own == created);
            if counts {
                progress.own = Some(created);
                progress.granted = Some(revision);
            }
            counts
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
        assert_eq!(place.created(10), 10);
        claims.deliver(&mail(&place, 10), 20);
        claims.deliver(&mail(&place, 10), 30);
        assert_eq!(place.granted(40, true), FencingToken::new(20));
        assert!(!place.was_alone());
    }

    #[test]
    fn a_mail_before_the_reply_supplies_the_create_revision() {
        let (claims, place) = claims_with_one();
        claims.deliver(&mail(&place, 10), 20);
        assert_eq!(place.created(11), 10);
        assert_eq!(place.token(), Some(FencingToken::new(20)));
    }

    #[test]
    fn mail_for_another_incarnation_or_key_is_ignored() {
        let (claims, place) = claims_with_one();
        place.created(10);
        claims.deliver(&mail(&place, 9), 20);
        claims.deliver(&Mail { key: format!("y{}", place.key), created: 10 }, 20);
        claims.deliver(&Mail { key: "x/7-nonsense".into(), created: 10 }, 20);
        assert_eq!(place.token(), None);
    }
}
