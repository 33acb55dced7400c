//! The connection of a session: requests with a time limit, and a new connection whenever the old one is of no use.
//!
//! * A reply is lost: the request answers "unknown" after its time limit, and the connection is replaced, because a black
//!   hole answers nothing later either. What other requests wait for on the old one may still arrive.
//! * The server has been made a replica: it says READONLY to every write, for ever; the connection is replaced.
//! * Messages are lost while there is no connection: all waiting claims look when there is one again.
//! * The server cannot be reached: requests fail at once while that is known, and the callers pause between their tries.

use std::{fmt, sync::Arc, time::Duration};

use lockkit_core::{
    backend::{ClaimId, retry_pauses},
    limits::RETRY_PAUSE_MAX,
};
use redis::Value;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use crate::{
    claims::Claims,
    error::{Effect, Fault},
    probe::Probe,
    scripts::Call,
    topology::{Connector, Listener, Wire},
};

/// An open connection.
#[derive(Clone)]
struct Link {
    wire: Wire,
    /// It is of no use any more.
    broken: CancellationToken,
}

#[derive(Clone)]
enum State {
    Up(Link),
    /// The last connection has just broken.
    Opening,
    /// The last try to connect has failed.
    Down(Fault),
}

/// The connection of a session.
pub(crate) struct Server {
    state: watch::Receiver<State>,
    timeout: Duration,
    /// Ends the task that keeps the connection up.
    _keeping: DropGuard,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Server {
    /// Connects, and keeps connected. Messages on `channel` wake the claims that they name.
    pub(crate) async fn connect(
        connector: Connector,
        channel: String,
        claims: Arc<Claims>,
    ) -> Result<Self, Fault> {
        let timeout = connector.timeout();
        let opener = Opener { connector, channel, claims };
        let first = opener.open().await?;
        let (state, watched) = watch::channel(State::Up(first.clone()));
        let ended = CancellationToken::new();
        let keeping = ended.clone().drop_guard();
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = opener.keep(first, state) => {}
            }
        });
        Ok(Self { state: watched, timeout, _keeping: keeping })
    }

    /// What the server says about itself; empty where the user may not ask.
    pub(crate) async fn probe(&self) -> Result<Probe, Fault> {
        let ask = |mut wire: Wire| async move { wire.query_one(&redis::cmd("INFO")).await };
        let answer = self.within(self.timeout, ask);
        match answer.await {
            Ok(info) => Ok(Probe::parse(&redis::from_redis_value::<String>(info)?)),
            Err(fault) if !fault.may_pass() => Ok(Probe::default()),
            Err(fault) => Err(fault),
        }
    }

    /// Executes a script.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value, Fault> {
        self.run_within(self.timeout, call).await
    }

    /// Executes a script, with a time limit of its own.
    pub(crate) async fn run_within(&self, timeout: Duration, call: &Call) -> Result<Value, Fault> {
        self.within(timeout, |mut wire| async move { execute(&mut wire, call).await }).await
    }

    /// Learns whether the server is there.
    pub(crate) async fn ping(&self, timeout: Duration) -> Result<(), Fault> {
        let ping = |mut wire: Wire| async move { wire.query_one(&redis::cmd("PING")).await };
        self.within(timeout, ping).await.map(drop)
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.timeout
    }

    async fn within<F>(&self, timeout: Duration, request: impl FnOnce(Wire) -> F) -> Result<Value, Fault>
    where
        F: Future<Output = Result<Value, Fault>>,
    {
        let deadline = tokio::time::Instant::now() + timeout;
        let link = match tokio::time::timeout_at(deadline, self.link()).await {
            Ok(link) => link?,
            Err(_) => return Err(Fault::no_reply().before_sending()),
        };
        let answer = tokio::time::timeout_at(deadline, request(link.wire.clone())).await;
        let answer = answer.unwrap_or_else(|_| Err(Fault::no_reply()));
        if answer.as_ref().is_err_and(|fault| link.wire.ends_with(fault)) {
            link.broken.cancel();
        }
        answer
    }

    async fn link(&self) -> Result<Link, Fault> {
        let mut state = self.state.clone();
        let known = state.wait_for(|state| !matches!(state, State::Opening)).await;
        match known.as_deref() {
            Ok(State::Up(link)) => Ok(link.clone()),
            Ok(State::Down(fault)) => Err(fault.clone()),
            // The runtime that kept it has ended.
            Ok(State::Opening) | Err(_) => Err(Fault::session_over()),
        }
    }
}

/// Executes a script; sends it in full where the server does not have it.
pub(crate) async fn execute(wire: &mut Wire, call: &Call) -> Result<Value, Fault> {
    match wire.query(&call.short()).await {
        Err(fault) if fault.effect == Effect::ScriptUnknown => wire.query(&call.full()).await,
        answer => answer,
    }
}

/// Opens connections.
struct Opener {
    connector: Connector,
    channel: String,
    claims: Arc<Claims>,
}

impl Opener {
    async fn open(&self) -> Result<Link, Fault> {
        let broken = CancellationToken::new();
        let opening = async {
            let mut wire = self.connector.connect(self.listener(broken.clone())).await?;
            wire.subscribe(&self.channel).await?;
            Ok(Link { wire, broken })
        };
        let opened = tokio::time::timeout(self.connector.timeout(), opening).await;
        opened.unwrap_or_else(|_| Err(Fault::no_reply())).map_err(Fault::before_sending)
    }

    fn listener(&self, broken: CancellationToken) -> Listener {
        let (named, all) = (Arc::clone(&self.claims), Arc::clone(&self.claims));
        Listener {
            message: Arc::new(move |text| {
                ClaimId::parse(text).into_iter().for_each(|claim| named.wake(claim))
            }),
            gap: Arc::new(move || all.wake_all()),
            broken,
        }
    }

    /// Replaces every connection that has broken.
    async fn keep(self, mut link: Link, state: watch::Sender<State>) {
        loop {
            link.broken.cancelled().await;
            debug!("the connection to Redis is of no use any more");
            state.send_replace(State::Opening);
            link = self.reopen(&state).await;
            state.send_replace(State::Up(link.clone()));
            self.claims.wake_all();
        }
    }

    async fn reopen(&self, state: &watch::Sender<State>) -> Link {
        let mut pauses = retry_pauses();
        loop {
            match self.open().await {
                Ok(link) => return link,
                Err(fault) => {
                    debug!(?fault, "no new connection to Redis yet");
                    state.send_replace(State::Down(fault));
                    tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
                }
            }
        }
    }
}
