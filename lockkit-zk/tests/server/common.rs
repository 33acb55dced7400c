//! What the tests share: sessions at real servers, claims driven step by step, and a plain client that acts for other
//! programs and operators.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

pub(crate) use lockkit_conformance::direct::*;
use lockkit_core::{
    Clock, Error, LockName,
    backend::{Acquired, Backend, BackendUrl, Claim, Grant, Inspection, Session},
};
use lockkit_testbed::{Direction, Flow, Pool, Proxy, Taken, ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};
use lockkit_zk::{ZkBackend, ZkConfig};
use zookeeper_client::{Acls, Client, CreateMode};

/// A ttl longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A short ttl, for tests that wait for its end or for a re-check (every 2 s then, so a session that is not renewed has
/// time for two).
pub(crate) const SHORT: Duration = Duration::from_secs(6);

/// How late a follower is, for tests that must read from it meanwhile. A follower that hears nothing for five seconds
/// leaves its leader.
pub(crate) const LATE: Duration = Duration::from_secs(2);

/// Less than the time to the first re-check of a waiter with a [`LONG`] ttl (at least 8.75 s).
pub(crate) const BEFORE_A_RECHECK: Duration = Duration::from_secs(8);

/// Measures until no waiter has re-checked meanwhile. `measure` also returns the longest wait.
pub(crate) async fn undisturbed<T>(measure: impl AsyncFn() -> (Duration, T)) -> T {
    const TRIES: u32 = 5;
    for _ in 0..TRIES {
        let (waited, measured) = measure().await;
        if waited < BEFORE_A_RECHECK {
            return measured;
        }
    }
    panic!("in each of {TRIES} measurements a claim waited longer than {BEFORE_A_RECHECK:?}");
}

/// The server shared by the tests of one program that do not disturb it.
pub(crate) fn shared() -> &'static ZooKeeper {
    static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
    SHARED.get_or_init(|| ZooKeeper::start().unwrap())
}

/// Returns a server for one test that counts its packets, watches or sessions, or pauses it. It is as if it were new,
/// and never removes empty directories.
pub(crate) fn own_server() -> Arc<Taken<ZooKeeper>> {
    static SERVERS: Pool<ZooKeeper> = Pool::new();
    let options = ZooKeeperOptions { reap_every: Duration::from_secs(24 * 60 * 60), ..Default::default() };
    SERVERS.take(ZooKeeper::clear, || ZooKeeper::start_with(options)).unwrap().until_the_thread_ends()
}

/// Returns an ensemble for one test that delays or cuts its members, and kills none.
pub(crate) fn own_ensemble() -> Arc<Taken<ZooKeeperEnsemble>> {
    static ENSEMBLES: Pool<ZooKeeperEnsemble> = Pool::new();
    let clear = |ensemble: &ZooKeeperEnsemble| {
        ensemble.heal();
        ensemble.member(ensemble.leader()?).clear()?;
        // Clients that were connected to the others are disconnected now.
        (0..ensemble.len()).try_for_each(|number| ensemble.member(number).clear())
    };
    ENSEMBLES.take(clear, ZooKeeperEnsemble::start).unwrap().until_the_thread_ends()
}

/// Returns the node of a lock whose name needs no encoding.
pub(crate) fn node(name: &LockName) -> String {
    format!("/lockkit/{name}")
}

/// Returns the contenders for a lock at the server.
pub(crate) fn queue(server: &ZooKeeper, name: &LockName) -> Vec<String> {
    server.children(&node(name)).unwrap()
}

/// Returns a backend for this URL. Where it names no request timeout, requests have more time than by default: on a busy
/// machine, an open may take seconds.
pub(crate) fn backend(url: &str) -> ZkBackend {
    let config = ZkConfig::from_url(BackendUrl::parse(url).unwrap()).unwrap();
    ZkBackend::new(match url.contains("request_timeout=") {
        true => config,
        false => config.request_timeout(Duration::from_secs(10)),
    })
}

/// Opens a new session, as another process would have it.
pub(crate) async fn session(server: &ZooKeeper, ttl: Duration) -> Arc<dyn Session> {
    session_at(&server.url(), ttl).await
}

/// Opens a session with so much time for a request that no ping of its client falls into a test.
pub(crate) async fn quiet_session(server: &ZooKeeper) -> Arc<dyn Session> {
    session_at(&quiet_url(server), LONG).await
}

/// Returns the URL of a server for sessions that send no ping during a test, if their ttl is [`LONG`].
pub(crate) fn quiet_url(server: &ZooKeeper) -> String {
    format!("{}/?request_timeout=60s", server.url())
}

pub(crate) async fn session_at(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).open_session(ttl, Clock::boot()).await.unwrap()
}

/// Returns a clock, and by how many seconds it is ahead, which can be raised.
pub(crate) fn shifted_clock() -> (Clock, Arc<AtomicU64>) {
    let (clock, ahead) = (Clock::boot(), Arc::new(AtomicU64::new(0)));
    let shift = Arc::clone(&ahead);
    (Clock::new(move || clock.now().after(Duration::from_secs(shift.load(SeqCst)))), ahead)
}

/// Returns why a session at this URL cannot be opened.
pub(crate) async fn refusal(url: &str) -> Error {
    bounded(backend(url).open_session(LONG, Clock::boot())).await.err().unwrap()
}

/// Inspects a lock as an operator with this URL.
pub(crate) async fn inspect(url: &str, name: &LockName) -> Inspection {
    bounded(backend(url).admin().unwrap().inspect(name)).await.unwrap()
}

/// Returns the URL of the server through this proxy. The request timeout is short for lost requests, but long enough
/// for a busy machine.
pub(crate) fn url_through(proxy: &Proxy) -> String {
    format!("zk://{}/?request_timeout=5s", proxy.endpoint())
}

/// Returns the URL of the server through this proxy, for requests that are refused and never lost: on a busy machine no
/// answer is too late.
pub(crate) fn patient_url(proxy: &Proxy) -> String {
    format!("zk://{}/?request_timeout=60s", proxy.endpoint())
}

/// Opens a session at this server through a new proxy.
pub(crate) async fn through_proxy(server: &ZooKeeper) -> (Proxy, Arc<dyn Session>) {
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&url_through(&proxy), LONG).await;
    (proxy, session)
}

/// Acquires as a keeper does: a claim that has ended with its entry is followed by another one.
pub(crate) async fn acquire_as_keeper(session: &Arc<dyn Session>, name: &LockName) -> Grant {
    loop {
        match start(session, name).ends().await {
            Ok(Acquired::EntryGone) => {}
            end => return granted(end),
        }
    }
}

/// Starts a claim for a lock with a directory; the proxy holds its create.
pub(crate) async fn held_create(proxy: &Proxy, session: &Arc<dyn Session>, name: &LockName) -> PendingClaim {
    release(session, &acquire(session, name).await).await;
    proxy.set(Direction::Requests, Flow::Hold);
    let claim = start(session, name);
    until("the create is under way", async || proxy.holds(&mark(&claim.claim))).await;
    claim
}

/// The same; the proxy holds the list that follows, too.
pub(crate) async fn held_create_and_list(
    proxy: &Proxy,
    session: &Arc<dyn Session>,
    name: &LockName,
) -> PendingClaim {
    let claim = held_create(proxy, session, name).await;
    // In a list, the path of the directory is followed by "no watch"; in the create, by the node's name.
    let list = format!("{}\0", node(name));
    until("the list is under way", async || proxy.holds(&list)).await;
    claim
}

/// Opens sessions at the leader of an ensemble and at a follower, which may be late; returns also the number of that
/// follower.
pub(crate) async fn at_leader_and_follower(
    ensemble: &ZooKeeperEnsemble,
) -> (Arc<dyn Session>, Arc<dyn Session>, usize) {
    let (leader, follower) = (ensemble.leader().unwrap(), ensemble.follower().unwrap());
    let [at_leader, at_follower] = [leader, follower].map(|number| quiet_url(ensemble.member(number)));
    (session_at(&at_leader, LONG).await, session_at(&at_follower, LONG).await, follower)
}

/// Starts a claim, and returns when it watches its predecessor; for servers without other watches.
pub(crate) async fn watching(
    server: &ZooKeeper,
    session: &Arc<dyn Session>,
    name: &LockName,
) -> PendingClaim {
    let before = server.watches().unwrap();
    let waiting = enqueued(session, name).await;
    until("it watches", async || server.watches().unwrap() == before + 1).await;
    waiting
}

/// Returns the part of a claim's node name that identifies the claim.
pub(crate) fn mark(claim: &Claim) -> String {
    let hex = claim.id().to_string();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Returns a plain client, as other programs and operators use.
pub(crate) async fn plain(server: &ZooKeeper) -> Client {
    Client::connect(&server.endpoint()).await.unwrap()
}

/// Creates a contender as another program would; returns its path.
pub(crate) async fn contend(client: &Client, name: &LockName, prefix: &str) -> String {
    let (directory, anyone) = (node(name), Acls::anyone_all());
    client.mkdir(&directory, &CreateMode::Persistent.with_acls(anyone)).await.unwrap();
    let prefix = format!("{directory}/{prefix}");
    let options = CreateMode::EphemeralSequential.with_acls(anyone);
    let (_, number) = client.create(&prefix, b"", &options).await.unwrap();
    format!("{prefix}{number}")
}
