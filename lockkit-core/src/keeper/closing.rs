//! The end of a session: what it has left at the server is taken away, or known to expire.
//!
//! * The server does not answer: the close is repeated until the session must have expired by itself.
//! * The client closes while its session is being opened: it is closed once it is open.
//! * The client closes for good: its last session is given at most a ttl.
//! * The runtime ends, or the session task panics: whoever waits for a session is told that the client is closed.

use std::sync::Arc;

use tokio::{task::JoinHandle, time::Instant};
use tracing::debug;

use super::{
    Keeper, closed,
    session::{Current, Live},
};
use crate::{
    BootInstant, Clock, Error, ErrorKind, Result, Status,
    backend::{Session, retry_pauses},
    limits::{CLOSE_ANSWER_MAX, RETRY_PAUSE_MAX},
};

impl Keeper {
    /// The orderly end: holds lost, claims given up, releases finished, session closed.
    pub(super) async fn end(&self, live: &Live) -> Result<()> {
        let until = self.close_until();
        let half = until - (until - Instant::now()) / 2;
        self.lose_all("the client was closed");
        self.lives.close();
        // Half of the time for releases that are under way; the end of the session does for the others.
        let _ = tokio::time::timeout_at(half, self.lives.wait()).await;
        live.end();
        // A task of its own: the last request is not dropped half-way when the time is up.
        self.end_of(vec![self.start_closing(live)]).await
    }

    /// The end of a client whose sessions are on their way out.
    pub(super) async fn end_of(&self, closing: Vec<JoinHandle<bool>>) -> Result<()> {
        let until = self.close_until();
        for closing in closing {
            confirmed(until, closing).await?;
        }
        Ok(())
    }

    /// When a client that closes has to be done with it: one bound for everything that is still to be ended.
    fn close_until(&self) -> Instant {
        let bound = self.granted_ttl().min(self.ttl).min(CLOSE_ANSWER_MAX);
        *self.close_until.get_or_init(|| Instant::now() + bound)
    }

    pub(super) fn start_closing(&self, live: &Live) -> JoinHandle<bool> {
        self.runtime.spawn(close_until(Arc::clone(live.session()), self.clock.clone(), live.expiry()))
    }
}

/// Waits for a closing; what is not confirmed by `until` is left to the ttl.
async fn confirmed(until: Instant, closing: JoinHandle<bool>) -> Result<()> {
    match tokio::time::timeout_at(until, closing).await {
        Ok(Ok(true)) => Ok(()),
        _ => Err(Error::new(ErrorKind::Unavailable, "close")
            .with_message("the store did not confirm the end of the session; it ends with its ttl")),
    }
}

/// Closes a session, so that entries of dead holds do not live on: again and again until the server has confirmed it,
/// at most until it must have expired by itself. Whether it was confirmed.
async fn close_until(session: Arc<dyn Session>, clock: Clock, expiry: BootInstant) -> bool {
    let mut pauses = retry_pauses();
    while let Err(error) = session.close().await {
        if clock.now() >= expiry {
            debug!(error = format_args!("{error:#}"), "a session was left to expire");
            return false;
        }
        tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
    }
    true
}

/// Closes a session that was still being opened when its client closed.
pub(super) async fn close_once_open(opening: JoinHandle<Result<Arc<dyn Session>>>, clock: Clock) -> bool {
    match opening.await {
        Ok(Ok(session)) => {
            let expiry = clock.now().after(session.ttl());
            close_until(session, clock, expiry).await
        }
        _ => true,
    }
}

/// Tells everybody that the client is closed, however the session task ends.
pub(super) struct LastWord(pub(super) Arc<Keeper>);

impl Drop for LastWord {
    fn drop(&mut self) {
        let keeper = &self.0;
        keeper.begin_close();
        keeper.lose_all("the client was closed");
        let still_open = !matches!(*keeper.current.borrow(), Current::Closed(_));
        if still_open {
            let last = keeper.current.send_replace(Current::Closed(Err(closed("keep the session"))));
            if let Current::Open(live) = last {
                live.end();
            }
        }
        keeper.status.send_replace(Status::Closed);
        keeper.runtime.stop();
    }
}
