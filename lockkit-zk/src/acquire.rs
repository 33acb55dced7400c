//! A claim's life up to its grant: create a node, wait for those before it, and withdraw when it comes to nothing.
//!
//! Failure cases:
//!
//! * The reply to the create is lost: the node is looked for by the claim's identity **and** this session as its owner,
//!   behind a request that went through the leader, so that what is not found will not come; only then it is created again.
//! * The claim is given up while the create is under way: its name is known only from the reply, which is awaited; then
//!   the node is deleted, again and again until that is answered.
//! * The node before it vanishes between list and watch: the list is read again at once. Its event is lost: a re-check
//!   looks for that node and the own one by name, and the list is read again when the former is gone. A list per re-check
//!   would cost a queue of n waiters n^2 names ([decision 0042](../../docs/decisions/0042-zookeeper-rechecks-by-name.md)).
//! * The own node vanishes while it waits (an operator's delete): so the end of the node before it grants nothing. Only a
//!   list that shows the own node and none before it does: the queue was in that state, and who was first stays first.
//! * The list is old, and the server has ended the session since: the grant's deadline has passed then, since it counts
//!   from the last answer that came through the leader. Where that is long ago, the leader is asked first.
//! * An operator deletes directory and nodes, and other claims get their names: where names recur, the node at the head is
//!   known by its `czxid`.
//! * The directory vanishes (the server takes empty containers away): it is made again.
//! * The server refuses to delete the node (its ACL): it would hold up others as long as the session lives, so the session is
//!   given up, and the caller is told why.
//! * The session is over: every pending step ends, the server takes the nodes away.

use std::{ops::ControlFlow, time::Duration};

use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{Acquired, Claim, Grant, recheck_pause, retry_pauses},
    limits::RETRY_PAUSE_MAX,
};
use tracing::{debug, warn};

use crate::{
    call::Created,
    claims::Held,
    error::{Effect, Fault},
    keys::{self, Form},
    presence::Sought,
    sequence::{Standing, sequence, standing},
    session::ZkSession,
};

/// Half of the numbers that one directory has: time to let it get empty and be deleted.
const NUMBERS_WARNED_OF: i32 = 1 << 30;

/// Numbers from here on are refused. At its last number the server (3.8) stays, so that two nodes may have the same one, and
/// older ones go on with negative numbers, which other programs order wrongly. Many clients may be on their way there at once.
const NUMBERS_MAX: i32 = i32::MAX - (1 << 16) + 1;

/// How a claim ended.
pub(crate) enum End {
    Granted,
    GaveUp,
    EntryGone,
}

/// A claim's node, as far as it is known.
pub(crate) struct Entry {
    /// The lock's node: the queue's directory, or the lock itself.
    pub(crate) lock: String,
    pub(crate) own: Option<Created>,
    /// A create was not answered.
    pub(crate) in_doubt: bool,
}

impl ZkSession {
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let mut entry = Entry { lock: self.layout.lock(claim.name())?, own: None, in_doubt: false };
        let end = match self.layout.form {
            Form::Single => self.claim_single(claim, &mut entry).await,
            Form::Curator | Form::Bare => self.claim(claim, &mut entry).await,
        };
        if let (Ok(End::Granted), Some(own)) = (&end, &entry.own) {
            let held = Held { session: self.server.session(), name: claim.name().clone(), own: own.clone() };
            self.claims.enter(claim.id(), held);
            return Ok(Acquired::Granted(Grant::new(claim, own.token(), self.server.proof.armed_at())));
        }
        let withdrawn = self.withdraw(claim, &mut entry).await;
        match end.and_then(|end| withdrawn.map(|()| end)) {
            Ok(End::GaveUp) => Ok(Acquired::GaveUp),
            Err(fault) if !fault.ended_with_the_session() || self.server.life.is_closed() => {
                Err(self.error(claim, fault))
            }
            // With the session the node is gone too.
            _ => Ok(Acquired::EntryGone),
        }
    }

    fn error(&self, claim: &Claim, fault: Fault) -> Error {
        fault.into_error("acquire").with_lock(claim.name())
    }

    async fn claim(&self, claim: &Claim, entry: &mut Entry) -> Result<End, Fault> {
        let prefix = format!("{}/{}", entry.lock, keys::node_prefix(self.layout.form, claim.id()));
        match self.create(claim, entry, &prefix).await? {
            ControlFlow::Break(end) => Ok(end),
            ControlFlow::Continue(own) => {
                self.check_number(&own)?;
                self.queue(claim, &entry.lock, &own).await
            }
        }
    }

    /// Brings the claim's node into being.
    pub(crate) async fn create(
        &self,
        claim: &Claim,
        entry: &mut Entry,
        path: &str,
    ) -> Result<ControlFlow<End, Created>, Fault> {
        let data = keys::data(claim.id(), &claim.metadata().to_json());
        let mut pauses = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(ControlFlow::Break(End::GaveUp));
            }
            let fault = match self.create_once(claim, entry, path, &data).await {
                Ok(own) => return Ok(ControlFlow::Continue(own)),
                Err(fault) if fault.effect == Effect::Missing => {
                    match self.server.make_directory(parent(path)).await {
                        Ok(()) => continue,
                        Err(fault) => fault,
                    }
                }
                Err(fault) => fault,
            };
            // A try does not wait for a server that is away.
            if !fault.may_pass() || !claim.wait() {
                return Err(fault);
            }
            debug!(?fault, claim = ?claim.id(), "create not answered");
            self.pause(claim, pauses.next()).await?;
        }
    }

    /// One create; a lost reply is looked up.
    async fn create_once(
        &self,
        claim: &Claim,
        entry: &mut Entry,
        path: &str,
        data: &str,
    ) -> Result<Created, Fault> {
        if !claim.wait() {
            // What is sent without a connection waits for the next one, however long that takes.
            self.server.connected(self.request_timeout).await?;
        }
        entry.in_doubt = true;
        let mut created = self.server.create(path, data, self.layout.form != Form::Single).await;
        if created.as_ref().is_err_and(|fault| fault.effect == Effect::Unknown) {
            self.look_up(claim, entry).await?;
            if let Some(own) = &entry.own {
                created = Ok(own.clone());
            }
        }
        entry.in_doubt = created.as_ref().is_err_and(|fault| fault.effect == Effect::SessionOver);
        entry.own = created.as_ref().ok().cloned();
        created
    }

    /// Finds out, until it is known, whether the create of an unanswered request was done.
    async fn look_up(&self, claim: &Claim, entry: &mut Entry) -> Result<(), Fault> {
        let mut pauses = retry_pauses();
        loop {
            match self.find(claim, &entry.lock).await {
                Ok(found) => {
                    debug!(claim = ?claim.id(), ?found, "create looked up");
                    (entry.own, entry.in_doubt) = (found, false);
                    return Ok(());
                }
                Err(fault) if fault.may_pass() => debug!(?fault, "look not answered"),
                Err(fault) => return Err(fault),
            }
            tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
        }
    }

    /// This claim's node, if there is one.
    async fn find(&self, claim: &Claim, lock: &str) -> Result<Option<Created>, Fault> {
        // What it answers is of no interest: it goes through the leader.
        self.server.check(&[&self.node]).await?;
        let form = self.layout.form;
        let prefix = keys::node_prefix(form, claim.id());
        let candidates: Vec<String> = match form {
            Form::Single => vec![lock.to_owned()],
            Form::Curator | Form::Bare => match self.server.children(lock).await {
                Ok(children) => children
                    .iter()
                    .filter(|child| child.starts_with(&prefix))
                    .map(|child| format!("{lock}/{child}"))
                    .collect(),
                Err(fault) if fault.effect == Effect::Missing => Vec::new(),
                Err(fault) => return Err(fault),
            },
        };
        for path in candidates {
            let (data, stat) = match self.server.data(&path).await {
                Err(fault) if fault.effect == Effect::Missing || fault.is_denied() => continue,
                answer => answer?,
            };
            // Where the name does not tell the claim, the data do.
            let is_claims =
                form == Form::Curator || data.starts_with(keys::data_prefix(claim.id()).as_bytes());
            if is_claims && stat.ephemeral_owner == self.server.session() {
                return Ok(Some(Created { path, czxid: stat.czxid }));
            }
        }
        Ok(None)
    }

    /// Waits until nobody is before the claim's node.
    async fn queue(&self, claim: &Claim, lock: &str, own: &Created) -> Result<End, Fault> {
        loop {
            let Some(children) = self.read(claim, || self.server.children(lock)).await? else {
                return Ok(End::GaveUp);
            };
            let predecessor = match standing(&children, own.name()) {
                Standing::Absent => return Ok(End::EntryGone),
                Standing::First => return self.arrive(claim, own).await,
                Standing::Behind(predecessor) => predecessor,
            };
            claim.note_contended();
            if !claim.wait() {
                return Ok(End::GaveUp);
            }
            if let Some(end) = self.wait(claim, own, &format!("{lock}/{predecessor}")).await? {
                return Ok(end);
            }
        }
    }

    /// Waits until the list must be read again: the predecessor is gone. `Some`: the claim ends without a grant.
    async fn wait(&self, claim: &Claim, own: &Created, predecessor: &str) -> Result<Option<End>, Fault> {
        let watcher = match self.read(claim, || self.server.watch(predecessor)).await? {
            None => return Ok(Some(End::GaveUp)),
            Some(None) => return Ok(None),
            Some(Some((_, watcher))) => watcher,
        };
        let changed = watcher.changed();
        tokio::pin!(changed);
        let nodes = [Sought::exactly(own, self.layout.form), Sought::by_name(predecessor)];
        loop {
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(Some(End::GaveUp)),
                () = self.server.life.over() => return Err(Fault::session_over()),
                _ = &mut changed => return Ok(None),
                () = tokio::time::sleep(recheck_pause(self.ttl)) => {}
            }
            // The watch stays. While both nodes are there, none can have come between them: numbers rise.
            match self.read(claim, || self.server.are_there(&nodes)).await?.as_deref() {
                None => return Ok(Some(End::GaveUp)),
                Some([true, true]) => {}
                Some([false, ..]) => return Ok(Some(End::EntryGone)),
                Some(_) => return Ok(None),
            }
        }
    }

    /// With nobody before it in a list, the claim is granted, unless its node must be looked at first.
    async fn arrive(&self, claim: &Claim, own: &Created) -> Result<End, Fault> {
        // So does a client count as suspect: a grant would be worth little, and the list may be as old.
        if self.server.proof.left() < self.ttl / 2 {
            let checked = self.read(claim, || async { self.server.check(&[&own.path]).await });
            match checked.await? {
                None => return Ok(End::GaveUp),
                Some(None) => {}
                Some(Some(_)) => return Ok(End::EntryGone),
            }
        }
        if !self.layout.form.names_recur() {
            return Ok(End::Granted);
        }
        // The list may be of another directory, and the name another one's.
        Ok(match self.read(claim, || self.server.stat(&own.path)).await? {
            None => End::GaveUp,
            Some(stat) if stat.is_some_and(|stat| stat.czxid == own.czxid) => End::Granted,
            Some(_) => End::EntryGone,
        })
    }

    /// Repeats a request without effect until it is answered; `None` when the claim is given up meanwhile.
    pub(crate) async fn read<T, F>(&self, claim: &Claim, request: impl Fn() -> F) -> Result<Option<T>, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut pauses = retry_pauses();
        loop {
            let answer = tokio::select! {
                biased;
                () = claim.give_up() => return Ok(None),
                answer = request() => answer,
            };
            match answer {
                Ok(value) => return Ok(Some(value)),
                Err(fault) if fault.may_pass() && claim.wait() => debug!(?fault, "look not answered"),
                Err(fault) => return Err(fault),
            }
            self.pause(claim, pauses.next()).await?;
        }
    }

    /// A pause between two tries, cut short when there is no sense in another.
    async fn pause(&self, claim: &Claim, pause: Option<Duration>) -> Result<(), Fault> {
        tokio::select! {
            () = tokio::time::sleep(pause.unwrap_or(RETRY_PAUSE_MAX)) => Ok(()),
            () = claim.give_up() => Ok(()),
            () = self.server.life.over() => Err(Fault::session_over()),
        }
    }

    /// Takes away what a claim without a grant may have left at the server; repeated until it is answered, or the
    /// session is over. What is refused ends with the session.
    async fn withdraw(&self, claim: &Claim, entry: &mut Entry) -> Result<(), Fault> {
        let life = &self.server.life;
        let mut pauses = retry_pauses();
        while !life.is_over() {
            match self.withdraw_once(claim, entry).await {
                Ok(()) => return Ok(()),
                Err(fault) if fault.may_pass() => debug!(?fault, claim = ?claim.id(), "not withdrawn yet"),
                Err(fault) => {
                    self.give_up_for(&fault);
                    return Err(fault);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)) => {}
                () = life.over() => {}
            }
        }
        Ok(())
    }

    async fn withdraw_once(&self, claim: &Claim, entry: &mut Entry) -> Result<(), Fault> {
        if entry.in_doubt {
            self.look_up(claim, entry).await?;
        }
        if let Some(own) = &entry.own {
            self.remove(own).await?;
            debug!(claim = ?claim.id(), "withdrawn");
        }
        Ok(())
    }

    /// Refuses a number that may not be its node's alone.
    fn check_number(&self, own: &Created) -> Result<(), Fault> {
        match sequence(own.name()) {
            Some(0..NUMBERS_WARNED_OF) => {}
            Some(NUMBERS_WARNED_OF..NUMBERS_MAX) => {
                let what = "this directory has used up half of its numbers; let it get empty and delete it";
                self.warn_of_numbers.call_once(|| warn!(node = own.path, what));
            }
            _ => {
                let what = format!(
                    "{} has used up its numbers: it must get empty and be deleted",
                    parent(&own.path)
                );
                return Err(Fault::new(Effect::Refused, ErrorKind::Unavailable, what));
            }
        }
        Ok(())
    }
}

/// The directory of a node.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}
