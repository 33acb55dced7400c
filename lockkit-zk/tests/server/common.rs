//! What the tests share: sessions at real servers, claims that are driven by hand, and a plain client for what other
//! programs and operators do.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

pub(crate) use lockkit_conformance::by_hand::*;
use lockkit_core::{
    Clock, Error, LockName,
    backend::{Backend, BackendUrl, Claim, Session},
};
use lockkit_testbed::{Proxy, ZooKeeper};
use lockkit_zk::{ZkBackend, ZkConfig};
use zookeeper_client::{Acls, Client, CreateMode};

/// A ttl that nothing here outlives, and with beats so far apart that no ping of a client falls into a test.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A short ttl, for tests that wait for its end or for a re-check (every 2 s then; who is not renewed has time for a
/// second one).
pub(crate) const SHORT: Duration = Duration::from_secs(6);

/// Less than the time after which a waiter with a [`LONG`] ttl looks again by itself (at least 8.75 s).
pub(crate) const BEFORE_A_LOOK: Duration = Duration::from_secs(8);

/// What is measured while no waiter looks again by itself. `measure` also returns how long one waited at most.
pub(crate) async fn undisturbed<T>(measure: impl AsyncFn() -> (Duration, T)) -> T {
    const TRIES: u32 = 5;
    for _ in 0..TRIES {
        let (waited, measured) = measure().await;
        if waited < BEFORE_A_LOOK {
            return measured;
        }
    }
    panic!("in each of {TRIES} measurements a claim waited longer than {BEFORE_A_LOOK:?}");
}

/// The server that the tests of one program share, where they do nothing to it.
pub(crate) fn shared() -> &'static ZooKeeper {
    static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
    SHARED.get_or_init(|| ZooKeeper::start().unwrap())
}

/// The node of a lock whose name needs no encoding.
pub(crate) fn node(name: &LockName) -> String {
    format!("/lockkit/{name}")
}

/// The contenders for a lock, as the server has them.
pub(crate) fn queue(server: &ZooKeeper, name: &LockName) -> Vec<String> {
    server.children(&node(name)).unwrap()
}

pub(crate) fn backend(url: &str) -> ZkBackend {
    ZkBackend::new(ZkConfig::from_url(BackendUrl::parse(url).unwrap()).unwrap())
}

/// A session of its own, as another process would have it.
pub(crate) async fn session(server: &ZooKeeper, ttl: Duration) -> Arc<dyn Session> {
    session_at(&server.url(), ttl).await
}

pub(crate) async fn session_at(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).open_session(ttl, Clock::boot()).await.unwrap()
}

/// Why there is no session at this URL.
pub(crate) async fn refusal(url: &str) -> Error {
    bounded(backend(url).open_session(LONG, Clock::boot())).await.err().unwrap()
}

/// The server through this proxy; requests that get lost cost little time, and those of a busy machine get through.
pub(crate) fn url_through(proxy: &Proxy) -> String {
    format!("zk://{}/?request_timeout=1500ms", proxy.endpoint())
}

/// Starts a claim, and returns when it watches its predecessor; for servers where nothing else does.
pub(crate) async fn watching(server: &ZooKeeper, session: &Arc<dyn Session>, name: &LockName) -> Waiting {
    let before = server.watches().unwrap();
    let waiting = enqueued(session, name).await;
    until("it watches", async || server.watches().unwrap() == before + 1).await;
    waiting
}

/// What the name of a claim's node holds.
pub(crate) fn mark(claim: &Claim) -> String {
    let hex = claim.id().to_string();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A plain client, as other programs and operators use.
pub(crate) async fn plain(server: &ZooKeeper) -> Client {
    Client::connect(&server.endpoint()).await.unwrap()
}

/// Creates a contender as another program would; answers its path.
pub(crate) async fn contend(client: &Client, name: &LockName, prefix: &str) -> String {
    let (directory, anyone) = (node(name), Acls::anyone_all());
    client.mkdir(&directory, &CreateMode::Persistent.with_acls(anyone)).await.unwrap();
    let prefix = format!("{directory}/{prefix}");
    let options = CreateMode::EphemeralSequential.with_acls(anyone);
    let (_, number) = client.create(&prefix, b"", &options).await.unwrap();
    format!("{prefix}{number}")
}
