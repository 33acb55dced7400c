//! One node: the connection to it, and a new one whenever the old one is of no use.
//!
//! * A reply does not come in time: whoever asked goes on without it, and later requests go over a new connection. The
//!   old one is kept as long as somebody waits for what it may still bring.
//! * The node cannot be reached: requests fail at once while that is known, so that a dead node costs nothing.

use std::{fmt, sync::Arc, time::Duration};

use lockkit_core::{backend::retry_pauses, limits::RETRY_PAUSE_MAX};
use redis::{PushInfo, PushKind, Value};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use super::{
    calls::{Request, found, look},
    ending::REPEATED_CLEAN_UPS_MAX,
    hints::Hints,
    marker::UNKNOWN,
    members::Members,
};
use crate::{
    error::{Ends, Fault},
    node::{Address, Dialer},
    scripts::Call,
    server::{execute, reconnect_pause},
    topology::Wire,
};

/// An open connection.
#[derive(Clone)]
pub(super) struct Link {
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

/// The node at one address.
pub(super) struct Node {
    name: String,
    /// Which of the URL's addresses.
    address: usize,
    members: Arc<Members>,
    /// Permits for clean-ups that are repeated.
    pub(super) repeated: Semaphore,
    state: watch::Receiver<State>,
    /// Ends the task that keeps the connection up.
    _keeping: DropGuard,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Node {
    /// Begins to connect to one of the members' addresses, and keeps connected.
    pub(super) fn connect(
        number: usize,
        address: Address,
        dialer: Dialer,
        hints: Arc<Hints>,
        members: Arc<Members>,
    ) -> Self {
        let name = name_of(&address);
        let (state, watched) = watch::channel(State::Opening);
        let ended = CancellationToken::new();
        let keeping = ended.clone().drop_guard();
        let opener = Opener { address, dialer, hints };
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = opener.keep(state) => {}
            }
        });
        let repeated = Semaphore::new(REPEATED_CLEAN_UPS_MAX);
        Self { name, address: number, members, repeated, state: watched, _keeping: keeping }
    }

    /// Host and port.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Executes a script, with a time limit.
    pub(super) async fn run(&self, limit: Duration, request: &Request) -> Result<Value, Fault> {
        let deadline = Instant::now() + limit;
        let link = self.link(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, self.ask(&link, request)).await;
        answer.unwrap_or_else(|_| {
            link.give_up();
            Err(Fault::no_reply())
        })
    }

    /// Executes a script over this connection, however long it takes.
    pub(super) async fn ask(&self, link: &Link, request: &Request) -> Result<Value, Fault> {
        let known = self.members.marker(self.address);
        let marker = match known {
            None if request.needs_marker() => self.introduce(link).await.map_err(Fault::before_sending)?,
            known => known,
        };
        link.execute(&request.to(marker.as_deref().unwrap_or(UNKNOWN))).await
    }

    /// Learns which node this is, where that is not known yet.
    async fn introduce(&self, link: &Link) -> Result<Option<String>, Fault> {
        let found = found(link.execute(&look().to(UNKNOWN)).await?)?;
        self.members.admit(self.address, &found)?;
        Ok(self.members.marker(self.address))
    }

    /// What the node says about itself.
    pub(super) async fn info(&self, limit: Duration) -> Result<String, Fault> {
        let deadline = Instant::now() + limit;
        let mut wire = self.link(deadline).await?.wire;
        let info = redis::cmd("INFO");
        let answer = tokio::time::timeout_at(deadline, wire.query_one(&info)).await;
        Ok(redis::from_redis_value(answer.unwrap_or_else(|_| Err(Fault::no_reply()))?)?)
    }

    /// The connection that there is, or that is being made.
    pub(super) async fn link(&self, deadline: Instant) -> Result<Link, Fault> {
        let mut state = self.state.clone();
        // A connection that was given up may not have been taken away yet.
        let known = state.wait_for(|state| match state {
            State::Up(link) => !link.broken.is_cancelled(),
            State::Opening => false,
            State::Down(_) => true,
        });
        match tokio::time::timeout_at(deadline, known).await {
            Ok(Ok(known)) => match &*known {
                State::Up(link) => Ok(link.clone()),
                State::Down(fault) => Err(fault.clone()),
                State::Opening => Err(Fault::session_over()),
            },
            // The runtime that kept it has ended.
            Ok(Err(_)) => Err(Fault::session_over()),
            Err(_) => Err(Fault::no_reply().before_sending()),
        }
    }

    /// Listens to a channel, or no more, with a time limit. A hint that is missed is made up for by the next look.
    pub(super) async fn listen(&self, limit: Duration, channel: &str, listens: bool) {
        let state = self.state.borrow().clone();
        if let State::Up(Link { wire: Wire::Node { mut connection, .. }, broken }) = state {
            let asking = async {
                match listens {
                    true => connection.subscribe(channel).await,
                    false => connection.unsubscribe(channel).await,
                }
            };
            match tokio::time::timeout(limit, asking).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(node = self.name, %error, "no hints"),
                // The next connection listens to what is waited for then.
                Err(_) => broken.cancel(),
            }
        }
    }
}

impl Link {
    async fn execute(&self, call: &Call) -> Result<Value, Fault> {
        let answer = execute(&mut self.wire.clone(), call).await;
        if answer.as_ref().is_err_and(|fault| fault.ends != Ends::Nothing) {
            self.give_up();
        }
        answer
    }

    /// Nothing new is sent over it.
    pub(super) fn give_up(&self) {
        self.broken.cancel();
    }
}

/// What the node at this address is called: in errors, and when a set is set up.
pub(super) fn name_of(address: &Address) -> String {
    match address {
        Address::Tcp(host, port) => format!("{}:{port}", host.to_ascii_lowercase()),
        Address::Unix(path) => path.display().to_string(),
    }
}

/// Opens connections.
struct Opener {
    address: Address,
    dialer: Dialer,
    hints: Arc<Hints>,
}

impl Opener {
    /// Replaces every connection that has broken.
    async fn keep(self, state: watch::Sender<State>) {
        loop {
            let link = self.open_at_last(&state).await;
            state.send_replace(State::Up(link.clone()));
            // What was told meanwhile was not heard.
            self.hints.wake_all();
            link.broken.cancelled().await;
            debug!(address = ?self.address, "the connection is of no use any more");
            state.send_replace(State::Opening);
            tokio::time::sleep(reconnect_pause()).await;
        }
    }

    async fn open_at_last(&self, state: &watch::Sender<State>) -> Link {
        let mut pauses = retry_pauses();
        loop {
            let opened = tokio::time::timeout(self.dialer.timeout, self.open()).await;
            match opened.unwrap_or_else(|_| Err(Fault::no_reply())) {
                Ok(link) => return link,
                Err(fault) => {
                    debug!(?fault, address = ?self.address, "no connection yet");
                    state.send_replace(State::Down(fault.before_sending()));
                    tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
                }
            }
        }
    }

    async fn open(&self) -> Result<Link, Fault> {
        let broken = CancellationToken::new();
        let (hints, ended) = (Arc::clone(&self.hints), broken.clone());
        let hear = move |push: PushInfo| match push.kind {
            PushKind::Message => hints.hear(&push),
            PushKind::Disconnection => ended.cancel(),
            _ => {}
        };
        let mut connection = self.dialer.open(&self.address, hear).await?;
        for channel in self.hints.channels() {
            connection.subscribe(channel).await?;
        }
        Ok(Link { wire: Wire::Node { connection, _watch: None }, broken })
    }
}

#[cfg(test)]
mod tests {
    use lockkit_testbed::{Direction, Flow, Proxy, Redis};

    use super::*;
    use crate::node::Login;

    /// Generous bound against hangs.
    const HANG: Duration = Duration::from_secs(30);

    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_that_is_silent_ends_the_wait_for_hints() {
        let redis = Redis::start().unwrap();
        let way = Proxy::start_redis(redis.endpoint()).unwrap();
        let end = way.endpoint();
        let (host, port) = end.split_once(':').unwrap();
        let node = Node::connect(
            0,
            Address::Tcp(host.to_owned(), port.parse().unwrap()),
            Dialer { login: Login::default(), tls: None, timeout: HANG },
            Arc::default(),
            Arc::new(Members::new(vec![end.clone()])),
        );
        node.run(HANG, &look()).await.unwrap();
        way.set(Direction::Replies, Flow::Hold);
        let listening = node.listen(Duration::from_millis(50), "channel", true);
        tokio::time::timeout(HANG, listening).await.expect("nobody waits for a hint for ever");
    }

    /// All nodes are lost in the same moment when a network fails, to all clients.
    #[test]
    fn no_two_connections_are_opened_again_after_the_same_pause() {
        let (one, other) = (reconnect_pause(), reconnect_pause());
        assert!(
            one != other && one.max(other) <= lockkit_core::limits::RETRY_PAUSE_MIN,
            "{one:?} and {other:?}"
        );
    }
}
