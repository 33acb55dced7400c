//! A TCP proxy that does to connections what networks do.
//!
//! Bytes of a connection arrive in order or not at all: a direction that has lost bytes is reset when the proxy lets
//! others pass, because no network delivers a stream with a gap. See [`Proxy`].

mod cut;
mod entry;
mod grpc;
mod http2;
mod link;
mod protobuf;
mod queue;
mod redis;
mod rules;
mod zookeeper;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
pub(crate) use self::rules::Speech;
use self::{
    cut::Origin,
    link::{Fate, Link},
    rules::Rules,
};
use crate::address::own_address;

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
    /// They pass so many at a time, and so long after each other.
    Trickle {
        /// Bytes at a time.
        bytes: usize,
        /// Time from one lot to the next.
        every: Duration,
    },
    /// They are kept here, in order, until they may flow again: a black hole that heals. The ends of connections are
    /// kept too, so that each side sees nothing but silence.
    Hold,
    /// They are lost: a black hole that swallows what was under way. A connection that has lost something is reset
    /// when anything may flow again.
    Drop,
}

/// What a proxy has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections of clients that were taken, also those that were refused a moment later.
    pub accepted: u64,
    /// Connections that are open at the moment.
    pub open: usize,
    /// Bytes delivered to the server.
    pub to_server: u64,
    /// Bytes delivered to clients.
    pub to_client: u64,
    /// Replies swallowed and messages dropped.
    pub dropped: u64,
    /// Calls that clients have begun, behind [`Proxy::start_grpc`].
    pub calls: u64,
}

/// A TCP proxy in front of one server, on a loopback address of its own.
///
/// It runs on a thread of its own, so that it works for tests of any kind: without a runtime, on a busy one, on a
/// paused clock. All calls take effect at once, on the connections that there are and on those to come, and none of
/// them waits.
///
/// ```
/// use lockkit_testbed::{Direction, Flow, Proxy};
///
/// # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let proxy = Proxy::start(server.local_addr()?)?;
/// let client = std::net::TcpStream::connect(proxy.endpoint())?;
/// proxy.set(Direction::Replies, Flow::Hold); // the server is heard no more
/// proxy.pass(); // and here is what it said
/// proxy.reset(); // and now the connection is gone, with a TCP reset
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

/// What the calls and the connections share.
#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    target: String,
    speech: Speech,
    requests: watch::Sender<Flow>,
    replies: watch::Sender<Flow>,
    is_refusing: AtomicBool,
    /// New connections wait until they may go on to the server.
    is_holding_new: watch::Sender<bool>,
    /// Nothing may come from them.
    blocked: watch::Sender<Vec<Origin>>,
    /// What comes from here passes always.
    spared: Mutex<Vec<IpAddr>>,
    links: Mutex<Vec<Arc<Link>>>,
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
        Self::start_at(own_address(), target, Speech::Any)
    }

    /// As [`start`](Self::start), for clients of an etcd without TLS: the proxy knows which bytes are one reply, and
    /// [`drop_messages`](Self::drop_messages) works.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_grpc(target: impl ToString) -> Result<Self> {
        Self::start_at(own_address(), target, Speech::Grpc)
    }

    /// As [`start_grpc`](Self::start_grpc), for clients of a ZooKeeper without TLS.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_zookeeper(target: impl ToString) -> Result<Self> {
        Self::start_at(own_address(), target, Speech::ZooKeeper)
    }

    /// As [`start_grpc`](Self::start_grpc), for clients of a Redis without TLS.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_redis(target: impl ToString) -> Result<Self> {
        Self::start_at(own_address(), target, Speech::Redis)
    }

    pub(crate) fn start_at(own: Ipv4Addr, target: impl ToString, speech: Speech) -> Result<Self> {
        let target = target.to_string();
        let listener = std::net::TcpListener::bind((own, 0)).context("no free port")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            address,
            target,
            speech,
            requests: watch::Sender::new(Flow::Pass),
            replies: watch::Sender::new(Flow::Pass),
            is_refusing: AtomicBool::new(false),
            is_holding_new: watch::Sender::new(false),
            blocked: watch::Sender::default(),
            spared: Mutex::default(),
            links: Mutex::default(),
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
                    () = entry::accept(listener, accepting) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the bytes of this direction fare like this.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.shared.flow(direction).send_replace(flow);
    }

    /// [Holds](Flow::Hold) all requests from the first on that contains this text, and comes in one piece. Until
    /// [`pass`](Self::pass).
    pub fn hold_at(&self, text: &str) {
        lock(&self.shared.rules).hold_at(text);
    }

    /// Makes everything well: both directions pass, connections are taken, replies and messages are no longer dropped.
    pub fn pass(&self) {
        lock(&self.shared.rules).clear();
        self.shared.is_refusing.store(false, SeqCst);
        self.shared.is_holding_new.send_replace(false);
        self.shared.blocked.send_replace(Vec::new());
        self.set(Direction::Requests, Flow::Pass);
        self.set(Direction::Replies, Flow::Pass);
    }

    /// Ends all connections that there are with a TCP reset to both sides; new ones are taken.
    pub fn reset(&self) {
        self.each_link(Fate::Reset);
    }

    /// Resets all connections, and all new ones at once, until [`pass`](Self::pass).
    pub fn refuse(&self) {
        self.refuse_new();
        self.reset();
    }

    /// Resets all new connections at once, until [`pass`](Self::pass); those that there are go on.
    pub fn refuse_new(&self) {
        self.shared.is_refusing.store(true, SeqCst);
    }

    /// Takes new connections, and does not make theirs to the server, until [`pass`](Self::pass); those that there are
    /// go on.
    pub fn hold_new(&self) {
        self.shared.is_holding_new.send_replace(true);
    }

    /// Resets all connections that there are to the clients alone. What is [held](Flow::Hold) of their requests stays
    /// here until [`deliver_late`](Self::deliver_late); the server sees clients that are silent.
    pub fn leave(&self) {
        self.each_link(Fate::Left);
    }

    /// Sends the requests whose clients were reset by [`leave`](Self::leave) to the server, which meets them as late
    /// as that.
    pub fn deliver_late(&self) {
        for link in self.links().into_iter().filter(|link| link.fate() == Fate::Left) {
            link.meets(Fate::Late);
        }
    }

    /// Whether a request that contains this text has come and is not sent on yet. (A text that was sent compressed or
    /// encrypted is not found.)
    pub fn holds(&self, text: &str) -> bool {
        self.links().iter().any(|link| link.requests.contains(text.as_bytes()))
    }

    /// The `nth` reply from now on, counted from 1 over all connections, does not reach its client: its connection
    /// is reset instead. For gRPC a reply answers a call or a keep-alive, not a watch, for Redis it is any value but a
    /// published message, for ZooKeeper it answers a request, not a ping; otherwise it is what the server says after
    /// the client has said something.
    pub fn swallow_reply(&self, nth: u64) {
        lock(&self.shared.rules).swallow_reply(nth);
    }

    /// The same with so many of the next replies.
    pub fn swallow_next(&self, count: u64) {
        lock(&self.shared.rules).swallow_next(count);
    }

    /// Keeps messages that tell of events until [`pass`](Self::pass): then they arrive, late. On etcd's streams what comes
    /// behind them is kept too; what Redis publishes may come at any place between its replies, which go on, and so do
    /// ZooKeeper's here. Needs [`start_grpc`](Self::start_grpc), [`start_redis`](Self::start_redis) or
    /// [`start_zookeeper`](Self::start_zookeeper).
    pub fn hold_events(&self) {
        lock(&self.shared.rules).holds_events = true;
    }

    /// Drops messages that nobody asked for: those for which `which` says so, asked with 1 for the first of this kind
    /// from now on, 2 for the next. The stream goes on, and the client cannot know. Until [`pass`](Self::pass). Needs
    /// a proxy that knows what client and server speak, such as [`start_grpc`](Self::start_grpc).
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

    /// Takes the lease out of every key that etcd answers to a read, as 3.7 does by itself for reads of keys only
    /// ([etcd #22209](https://github.com/etcd-io/etcd/issues/22209)), until [`pass`](Self::pass). Answers of more than
    /// 16 KiB keep them. Needs [`start_grpc`](Self::start_grpc).
    pub fn hide_leases(&self) {
        lock(&self.shared.rules).hides_leases = true;
    }

    /// What the proxy has seen so far.
    pub fn counts(&self) -> Counts {
        let rules = lock(&self.shared.rules);
        Counts {
            accepted: self.shared.accepted.load(SeqCst),
            open: lock(&self.shared.links).len(),
            to_server: self.shared.to_server.load(SeqCst),
            to_client: self.shared.to_client.load(SeqCst),
            dropped: rules.dropped,
            calls: rules.calls,
        }
    }

    fn each_link(&self, fate: Fate) {
        self.links().iter().for_each(|link| link.meets(fate));
    }

    fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.shared.links).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and a second one here would hide the test's own failure.
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

/// A panic of another thread that held it is that thread's failure.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
