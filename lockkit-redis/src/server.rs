//! The connection of a session: requests with a time limit, and a new connection whenever the old one is of no use.
//!
//! * A reply is lost: the request answers "unknown" after its time limit, and the connection is replaced, because a black
//!   hole answers nothing later either. What other requests wait for on the old one may still arrive.
//! * The server has been made a replica: it says READONLY to every write, for ever; the connection is replaced, with a
//!   growing pause while no connection is of any use.
//! * Messages are lost while there is no connection: all waiting claims look when there is one again.
//! * The server cannot be reached: requests fail at once while that is known, and the callers pause between their tries.
//! * One node of a cluster does not answer: that is no reason to leave the others. When they name a successor, when it
//!   stays silent for long, or when the connection to any node ends (the client crate may lose the subscription by
//!   that), a new connection to all of them is made, and the old one serves until it is there.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{
    backend::{ClaimId, retry_pauses},
    limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN},
};
use redis::{Cmd, Value};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use crate::{
    claims::Claims,
    error::{Effect, Ends, Fault},
    probe::Probe,
    scripts::Call,
    topology::{Connector, Listener, Wire},
};

/// Pause between two questions for the masters of a cluster of which one does not answer.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Such questions in a row that change nothing before the connection is replaced all the same; twice as many before the
/// next one is.
const LOOKS: u32 = 8;

/// An open connection.
#[derive(Clone)]
struct Link {
    wire: Wire,
    /// It is of no use any more.
    broken: CancellationToken,
    /// It serves, but another one should take its place.
    worn: CancellationToken,
    /// One of its servers has not answered.
    doubted: Arc<Notify>,
    /// A script was executed over it.
    was_of_use: Arc<AtomicBool>,
    opened: Instant,
    /// So many questions for the masters may change nothing.
    looks: u32,
}

impl Link {
    fn new(wire: Wire, broken: CancellationToken, worn: CancellationToken) -> Self {
        let (doubted, was_of_use) = (Arc::default(), Arc::default());
        Self { wire, broken, worn, doubted, was_of_use, opened: Instant::now(), looks: LOOKS }
    }

    /// Another one may be opened at once.
    fn has_served(&self) -> bool {
        self.was_of_use.load(SeqCst) || self.opened.elapsed() > RETRY_PAUSE_MAX
    }

    /// A request has failed like this.
    fn met(&self, fault: &Fault) {
        match fault.ends {
            Ends::Nothing => {}
            Ends::Connection if self.wire.has_many_servers() => self.doubted.notify_one(),
            Ends::Connection | Ends::Cluster => self.broken.cancel(),
        }
    }
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
    /// `None` where no messages come.
    channel: Option<String>,
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
        Self::kept_up(Opener { connector, channel: Some(channel), claims }).await
    }

    /// As [`connect`](Self::connect), to be sent no messages.
    pub(crate) async fn connect_silent(connector: Connector) -> Result<Self, Fault> {
        Self::kept_up(Opener { connector, channel: None, claims: Arc::default() }).await
    }

    async fn kept_up(opener: Opener) -> Result<Self, Fault> {
        let (timeout, channel) = (opener.connector.timeout(), opener.channel.clone());
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
        Ok(Self { state: watched, timeout, channel, _keeping: keeping })
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

    /// Fails where the user may not publish: a hand-over would go on without its message, and nobody would know why it
    /// takes so long.
    pub(crate) async fn probe_publishing(&self) -> Result<(), Fault> {
        let Some(channel) = &self.channel else { return Ok(()) };
        // It comes back to this client, which makes nothing of it.
        let publish = redis::cmd("PUBLISH").arg(channel).arg("").to_owned();
        let publish = |mut wire: Wire| async move { wire.query_at(channel, &publish).await };
        self.within(self.timeout, publish).await.map(drop)
    }

    /// Executes a script.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value, Fault> {
        self.run_within(self.timeout, call).await
    }

    /// Executes a script, with a time limit of its own.
    pub(crate) async fn run_within(&self, timeout: Duration, call: &Call) -> Result<Value, Fault> {
        self.over_link(timeout, |mut link| async move {
            let answer = execute(&mut link.wire, call).await;
            link.was_of_use.fetch_or(answer.is_ok(), SeqCst);
            answer
        })
        .await
    }

    /// Executes a script, and a command right after it over the same connection. `asking` as for
    /// [`Wire::query_together`].
    pub(crate) async fn run_with(
        &self,
        timeout: Duration,
        call: &Call,
        after: Option<Cmd>,
        asking: bool,
    ) -> Result<Vec<Value>, Fault> {
        self.over_link(timeout, |mut link| async move {
            let answers = execute_with(&mut link.wire, call, after, asking).await;
            link.was_of_use.fetch_or(answers.is_ok(), SeqCst);
            answers
        })
        .await
    }

    /// Learns whether the server is there.
    pub(crate) async fn ping(&self, timeout: Duration) -> Result<(), Fault> {
        let ping = |mut wire: Wire| async move { wire.query_one(&redis::cmd("PING")).await };
        self.within(timeout, ping).await.map(drop)
    }

    /// Learns whether the server is there that messages come from, which may be asked for nothing else.
    pub(crate) async fn ping_channel(&self, timeout: Duration) -> Result<(), Fault> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let ping = |mut wire: Wire| async move { wire.query_at(channel, &redis::cmd("PING")).await };
        self.within(timeout, ping).await.map(drop)
    }

    /// Replaces the connection that there is.
    pub(crate) fn reconnect(&self) {
        if let State::Up(link) = &*self.state.borrow() {
            link.broken.cancel();
        }
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.timeout
    }

    async fn within<F>(&self, timeout: Duration, request: impl FnOnce(Wire) -> F) -> Result<Value, Fault>
    where
        F: Future<Output = Result<Value, Fault>>,
    {
        self.over_link(timeout, |link| request(link.wire)).await
    }

    async fn over_link<T, F>(&self, timeout: Duration, request: impl FnOnce(Link) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let deadline = Instant::now() + timeout;
        let link = match tokio::time::timeout_at(deadline, self.link()).await {
            Ok(link) => link?,
            Err(_) => return Err(Fault::no_reply().before_sending()),
        };
        let answer = tokio::time::timeout_at(deadline, request(link.clone())).await;
        let answer = answer.unwrap_or_else(|_| Err(Fault::no_reply()));
        answer.inspect_err(|fault| link.met(fault))
    }

    async fn link(&self) -> Result<Link, Fault> {
        let mut state = self.state.clone();
        // A connection that is known to be broken may not have been taken away yet.
        let is_known = |state: &State| match state {
            State::Up(link) => !link.broken.is_cancelled(),
            State::Opening => false,
            State::Down(_) => true,
        };
        let known = state.wait_for(is_known).await;
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

/// As [`execute`], with a command right after the script.
async fn execute_with(
    wire: &mut Wire,
    call: &Call,
    after: Option<Cmd>,
    asking: bool,
) -> Result<Vec<Value>, Fault> {
    let both = |script: Cmd| std::iter::once(script).chain(after.clone()).collect();
    match wire.query_together(call.first_key(), both(call.short()), asking).await {
        Err(fault) if fault.effect == Effect::ScriptUnknown => {
            wire.query_together(call.first_key(), both(call.full()), asking).await
        }
        answers => answers,
    }
}

/// Before the first try after a connection that served: all clients of a server lose theirs in the same moment.
pub(crate) fn reconnect_pause() -> Duration {
    RETRY_PAUSE_MIN.mul_f64(fastrand::f64())
}

/// Opens connections.
struct Opener {
    connector: Connector,
    channel: Option<String>,
    claims: Arc<Claims>,
}

impl Opener {
    async fn open(&self) -> Result<Link, Fault> {
        let (broken, worn) = (CancellationToken::new(), CancellationToken::new());
        let opening = async {
            let mut wire = self.connector.connect(self.listener(&broken, &worn)).await?;
            if let Some(channel) = &self.channel {
                wire.subscribe(channel).await?;
            }
            Ok(wire)
        };
        let opened = tokio::time::timeout(self.connector.timeout(), opening).await;
        let wire = opened.unwrap_or_else(|_| Err(Fault::no_reply())).map_err(Fault::before_sending)?;
        Ok(Link::new(wire, broken, worn))
    }

    fn listener(&self, broken: &CancellationToken, worn: &CancellationToken) -> Listener {
        let (named, all) = (Arc::clone(&self.claims), Arc::clone(&self.claims));
        Listener {
            message: Arc::new(move |text| {
                ClaimId::parse(text).into_iter().for_each(|claim| named.wake(claim))
            }),
            gap: Arc::new(move || all.wake_all()),
            broken: broken.clone(),
            worn: worn.clone(),
        }
    }

    /// Replaces every connection that has broken, or that another one should take the place of.
    async fn keep(self, mut link: Link, state: watch::Sender<State>) {
        let mut pauses = retry_pauses();
        loop {
            link = tokio::select! {
                biased;
                () = link.broken.cancelled() => {
                    debug!("the connection to Redis is of no use any more");
                    state.send_replace(State::Opening);
                    if link.has_served() {
                        pauses = retry_pauses();
                        tokio::time::sleep(reconnect_pause()).await;
                    } else {
                        // It would be opened, used by all who wait, and found wanting, as fast as that goes.
                        tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
                    }
                    self.reopen(&state).await
                }
                successor = self.successor(&link) => successor,
            };
            state.send_replace(State::Up(link.clone()));
            self.claims.wake_all();
        }
    }

    /// The connection that takes the place of one that serves, as soon as one should.
    async fn successor(&self, link: &Link) -> Link {
        // Connections that are cut again and again are not made again as often.
        tokio::time::sleep(RETRY_PAUSE_MIN).await;
        let mut pauses = retry_pauses();
        loop {
            let looks = tokio::select! {
                () = link.worn.cancelled() => LOOKS,
                looks = self.outdated(link) => looks,
            };
            debug!(looks, "there should be another connection to the cluster");
            tokio::time::sleep(reconnect_pause()).await;
            match self.open().await {
                Ok(successor) => return Link { looks, ..successor },
                Err(fault) => debug!(?fault, "no other connection to the cluster yet"),
            }
            tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
        }
    }

    /// Passes when servers are silent and the others say that there are other masters now, or when that does not end:
    /// the client crate may have been sent on since the masters were asked for. Answers how many questions the next
    /// connection may take.
    async fn outdated(&self, link: &Link) -> u32 {
        for _ in 0..link.looks {
            link.doubted.notified().await;
            let asked = tokio::time::timeout(self.connector.timeout(), link.wire.clone().is_outdated()).await;
            if asked.unwrap_or_default() {
                return LOOKS;
            }
            // A server that is slow for long must not be a reason to ask for ever.
            tokio::time::sleep(LOOK_PAUSE + reconnect_pause()).await;
        }
        link.looks.saturating_mul(2)
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
