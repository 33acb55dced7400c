//! A TCP proxy that delays, holds, drops and resets connections. See [`Proxy`].
//!
//! Bytes of a connection arrive in order or not at all. Once bytes of a direction were dropped, its connection is reset
//! as soon as bytes may pass again, because TCP never delivers a stream with a gap.

mod admission;
mod connection;
mod cut;
mod grpc;
mod http2;
mod protobuf;
mod queue;
mod redis;
mod redis_group;
mod rules;
mod zookeeper;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    runtime, select,
    sync::{oneshot, watch},
};

pub use self::rules::Message;
pub(crate) use self::rules::Protocol;
use self::{
    connection::{ClientConnection, ConnectionState},
    cut::Origin,
    rules::Rules,
};
use crate::{address::own_address, sync::lock};

/// One of the two directions of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They pass.
    Pass,
    /// They pass, each this long after it came.
    Delay(Duration),
    /// They pass in small chunks.
    Trickle {
        /// Bytes in a chunk.
        bytes: usize,
        /// Time between two chunks.
        every: Duration,
    },
    /// The proxy holds them in order until they may pass again. It holds the ends of connections too: each side sees
    /// only silence.
    Hold,
    /// They are lost. A connection that has lost something is reset as soon as bytes may pass again.
    Drop,
}

/// Counters of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted connections of clients, including those that were refused at once.
    pub accepted: u64,
    /// Connections that are open now.
    pub open: usize,
    /// Bytes delivered to the server.
    pub to_server: u64,
    /// Bytes delivered to clients.
    pub to_client: u64,
    /// Replies swallowed, messages dropped and requests refused.
    pub dropped: u64,
    /// Calls that clients have begun; only counted by [`Proxy::start_grpc`].
    pub calls: u64,
}

/// A TCP proxy in front of one server, on a loopback address of its own.
///
/// It runs on its own thread, so it works without a runtime, on a busy one, and on a paused clock. All calls take
/// effect at once, on open and on future connections, and do not wait.
///
/// ```
/// use lockkit_testbed::{Direction, Flow, Proxy};
///
/// # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let proxy = Proxy::start(server.local_addr()?)?;
/// let client = std::net::TcpStream::connect(proxy.endpoint())?;
/// proxy.set(Direction::Replies, Flow::Hold); // the server seems silent
/// proxy.pass(); // its replies arrive
/// proxy.reset(); // all connections are closed with a TCP reset
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Ends the thread when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the methods of the proxy and its connections share.
#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    target: String,
    protocol: Protocol,
    requests: watch::Sender<Flow>,
    replies: watch::Sender<Flow>,
    is_refusing: AtomicBool,
    /// New connections are not connected to the server yet.
    is_holding_new: watch::Sender<bool>,
    /// Connections from here are cut off.
    blocked: watch::Sender<Vec<Origin>>,
    /// Connections from here always pass.
    exempt: Mutex<Vec<IpAddr>>,
    connections: Mutex<Vec<Arc<ClientConnection>>>,
    rules: Mutex<Rules>,
    accepted: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl Proxy {
    /// Starts a proxy in front of `target` (`HOST:PORT`), which need not run yet.
    ///
    /// # Errors
    ///
    /// When there is no address or no thread left.
    pub fn start(target: impl ToString) -> Result<Self> {
        Self::start_at(own_address(), target, Protocol::Any)
    }

    /// As [`start`](Self::start), for etcd without TLS: the proxy parses replies, so that
    /// [`drop_messages`](Self::drop_messages) works.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_grpc(target: impl ToString) -> Result<Self> {
        Self::start_at(own_address(), target, Protocol::Grpc)
    }

    /// As [`start_grpc`](Self::start_grpc), for ZooKeeper without TLS.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_zookeeper(target: impl ToString) -> Result<Self> {
        Self::start_at(own_address(), target, Protocol::ZooKeeper)
    }

    /// As [`start_grpc`](Self::start_grpc), for Redis without TLS.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_redis(target: impl ToString) -> Result<Self> {
        Self::start_at(own_address(), target, Protocol::Redis)
    }

    pub(crate) fn start_at(own: Ipv4Addr, target: impl ToString, protocol: Protocol) -> Result<Self> {
        let listener = std::net::TcpListener::bind((own, 0)).context("no free port")?;
        Self::start_on(listener, target.to_string(), protocol)
    }

    fn start_on(listener: std::net::TcpListener, target: String, protocol: Protocol) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            address,
            target,
            protocol,
            requests: watch::Sender::new(Flow::Pass),
            replies: watch::Sender::new(Flow::Pass),
            is_refusing: AtomicBool::new(false),
            is_holding_new: watch::Sender::new(false),
            blocked: watch::Sender::default(),
            exempt: Mutex::default(),
            connections: Mutex::default(),
            rules: Mutex::default(),
            accepted: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
        });
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("testbed-proxy".to_owned()).spawn(move || {
            runtime.block_on(async {
                select! {
                    () = admission::accept(listener, accepting) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens to the bytes of a direction.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.shared.flow(direction).send_replace(flow);
    }

    /// [Holds](Flow::Hold) all requests, beginning with the first that contains these bytes, until [`pass`](Self::pass).
    /// They must arrive in one piece.
    pub fn hold_requests_from(&self, bytes: impl AsRef<[u8]>) {
        lock(&self.shared.rules).hold_requests_from(bytes.as_ref());
    }

    /// [Holds](Flow::Hold) the requests of the connections that are open now, until [`pass`](Self::pass). Those of new
    /// ones pass.
    pub fn stall_open(&self) {
        self.set_stalled(true);
        // The connections look again.
        self.shared.requests.send_modify(|_| ());
    }

    /// Ends all faults: both directions pass, new connections are served, and nothing is dropped.
    pub fn pass(&self) {
        lock(&self.shared.rules).clear();
        self.shared.is_refusing.store(false, SeqCst);
        self.shared.is_holding_new.send_replace(false);
        self.shared.blocked.send_replace(Vec::new());
        self.set_stalled(false);
        self.set(Direction::Requests, Flow::Pass);
        self.set(Direction::Replies, Flow::Pass);
    }

    /// Closes all open connections with a TCP reset to both sides. New ones are served.
    pub fn reset(&self) {
        self.advance_all(ConnectionState::Reset);
    }

    /// Resets all open connections and all new ones, until [`pass`](Self::pass).
    pub fn refuse(&self) {
        self.refuse_new();
        self.reset();
    }

    /// Resets all new connections, until [`pass`](Self::pass). Open ones continue.
    pub fn refuse_new(&self) {
        self.shared.is_refusing.store(true, SeqCst);
    }

    /// Accepts new connections but does not connect them to the server, until [`pass`](Self::pass). Open ones continue.
    pub fn hold_new(&self) {
        self.shared.is_holding_new.send_replace(true);
    }

    /// Resets all open connections to the clients only. The server sees silent clients; their [held](Flow::Hold)
    /// requests stay here until [`deliver_late`](Self::deliver_late).
    pub fn reset_clients(&self) {
        self.advance_all(ConnectionState::ClientReset);
    }

    /// Sends the held requests of clients that [`reset_clients`](Self::reset_clients) has reset to the server.
    pub fn deliver_late(&self) {
        for connection in self
            .connections()
            .into_iter()
            .filter(|connection| connection.state() == ConnectionState::ClientReset)
        {
            connection.advance_to(ConnectionState::DeliverLate);
        }
    }

    /// Returns whether a request that contains this text was received and not forwarded yet. The text is not found in
    /// compressed or encrypted requests.
    pub fn holds(&self, text: &str) -> bool {
        self.holds_bytes(text.as_bytes())
    }

    /// The same for bytes that are not text.
    pub fn holds_bytes(&self, bytes: &[u8]) -> bool {
        self.connections().iter().any(|connection| connection.requests.contains(bytes))
    }

    /// Swallows the `nth` reply from now on, counted from 1 over all connections: its connection is reset instead.
    ///
    /// A reply is: for gRPC, the answer to a call or a keep-alive, not to a watch; for Redis, any value but a published
    /// message; for ZooKeeper, the answer to a request, not to a ping; otherwise, what the server sends after the
    /// client has sent something.
    pub fn swallow_reply(&self, nth: u64) {
        lock(&self.shared.rules).swallow_reply(nth);
    }

    /// Swallows the next `count` replies, see [`swallow_reply`](Self::swallow_reply).
    pub fn swallow_next(&self, count: u64) {
        lock(&self.shared.rules).swallow_next(count);
    }

    /// Holds messages with events until [`pass`](Self::pass), which delivers them.
    ///
    /// On etcd's streams, all later messages are held too. For Redis and ZooKeeper, replies still pass. Needs
    /// [`start_grpc`](Self::start_grpc), [`start_redis`](Self::start_redis) or
    /// [`start_zookeeper`](Self::start_zookeeper).
    pub fn hold_events(&self) {
        lock(&self.shared.rules).holds_events = true;
    }

    /// Drops messages of a kind until [`pass`](Self::pass): those for which `which` returns true. It gets 1 for the
    /// first message of this kind from now on, 2 for the next, and so on.
    ///
    /// The stream continues, and the client does not notice. Needs a proxy that parses the protocol, such as
    /// [`start_grpc`](Self::start_grpc).
    ///
    /// ```no_run
    /// # let proxy = lockkit_testbed::Proxy::start_grpc("127.0.0.1:2379").unwrap();
    /// use lockkit_testbed::Message;
    /// proxy.drop_messages(Message::Deletions, |_| true); // all
    /// proxy.drop_messages(Message::KeepAlives, |n| n % 3 == 0); // every third
    /// ```
    pub fn drop_messages(&self, message: Message, which: impl FnMut(u64) -> bool + Send + 'static) {
        lock(&self.shared.rules).drop_messages(message, Box::new(which));
    }

    /// Removes the lease from every key in etcd's replies to reads, until [`pass`](Self::pass).
    ///
    /// etcd 3.7 does so itself for reads of keys only ([etcd #22209](https://github.com/etcd-io/etcd/issues/22209)).
    /// Replies of more than 16 KiB keep the leases. Needs [`start_grpc`](Self::start_grpc).
    pub fn hide_leases(&self) {
        lock(&self.shared.rules).hides_leases = true;
    }

    /// Returns the counters of the proxy.
    pub fn counts(&self) -> Counts {
        let rules = lock(&self.shared.rules);
        Counts {
            accepted: self.shared.accepted.load(SeqCst),
            open: lock(&self.shared.connections).len(),
            to_server: self.shared.to_server.load(SeqCst),
            to_client: self.shared.to_client.load(SeqCst),
            dropped: rules.dropped,
            calls: rules.calls,
        }
    }

    fn set_stalled(&self, is_stalled: bool) {
        self.connections().iter().for_each(|connection| connection.is_stalled.store(is_stalled, SeqCst));
    }

    fn advance_all(&self, state: ConnectionState) {
        self.connections().iter().for_each(|connection| connection.advance_to(state));
    }

    fn connections(&self) -> Vec<Arc<ClientConnection>> {
        lock(&self.shared.connections).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already. A second one here would hide the test's own failure.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn flow(&self, direction: Direction) -> &watch::Sender<Flow> {
        match direction {
            Direction::Requests => &self.requests,
            Direction::Replies => &self.replies,
        }
    }

    fn delivered(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Requests => &self.to_server,
            Direction::Replies => &self.to_client,
        }
    }
}
