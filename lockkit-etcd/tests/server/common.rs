//! Shared helpers: sessions at real servers, claims without a keeper, and a plain etcd client that acts for operators
//! and other programs.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use etcd_client::ConnectOptions;
pub(crate) use lockkit_conformance::direct::*;
use lockkit_core::{
    Clock, LockName,
    backend::{Backend, BackendUrl, Claim, Evidence, Grant, Session},
};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::{Etcd, Pool, Proxy, Taken};

/// A ttl for sessions that are never renewed and must not end.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

/// Time limit of requests for which a test chooses none: longer than a busy machine delays a reply.
const PATIENT: Duration = Duration::from_secs(10);

/// The server that is shared by all tests that do not disturb it.
pub(crate) fn shared() -> &'static Etcd {
    static SHARED: OnceLock<Etcd> = OnceLock::new();
    SHARED.get_or_init(|| Etcd::start().unwrap())
}

/// A server for one test.
pub(crate) type OwnServer = Arc<Taken<Etcd>>;

/// Returns a server for one test that counts what is at it, or disturbs it. It is as if it were new, except that revisions
/// and counters go on. Not for the Lock RPC: waits that end together can block it for all clients of a server (etcd #13336).
pub(crate) fn own_server() -> OwnServer {
    static SERVERS: Pool<Etcd> = Pool::new();
    SERVERS.take(Etcd::clear, Etcd::start).unwrap().until_the_thread_ends()
}

/// The common beginning of the keys of a lock whose name needs no encoding.
pub(crate) fn queue(name: &LockName) -> String {
    format!("lockkit/{name}/")
}

/// The backend at this URL, with a long time limit for requests if the URL has none.
pub(crate) fn backend(url: &str) -> EtcdBackend {
    let config = EtcdConfig::from_url(BackendUrl::parse(url).unwrap()).unwrap();
    let is_limited = url.contains("request_timeout=");
    EtcdBackend::new(if is_limited { config } else { config.request_timeout(PATIENT) })
}

/// Opens a session.
pub(crate) async fn session(etcd: &Etcd, ttl: Duration) -> Arc<dyn Session> {
    session_at(&etcd.url(), ttl).await
}

pub(crate) async fn session_at(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).open_session(ttl, Clock::boot()).await.unwrap()
}

/// The URL of the server behind this proxy. The time limit is short for lost requests, and long enough for a busy
/// machine.
pub(crate) fn url_through(proxy: &Proxy) -> String {
    format!("etcd://{}/?request_timeout=5s", proxy.endpoint())
}

/// Returns a server for one test, and a session at it through a proxy.
pub(crate) async fn start_with_proxy() -> (OwnServer, Proxy, Arc<dyn Session>) {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let session = session_at(&url_through(&proxy), LONG).await;
    (etcd, proxy, session)
}

/// Closes the connections of clients, and accepts new ones. What was sent before stays under way.
pub(crate) fn cut(proxy: &Proxy) {
    proxy.reset_clients();
    proxy.pass();
}

/// How many transactions the server has answered.
pub(crate) fn txns(etcd: &Etcd) -> u64 {
    etcd.metrics().unwrap().grpc_handled("Txn")
}

/// Delivers the first copy of a request that was sent again meanwhile, and waits until it is executed.
pub(crate) async fn deliver_late(etcd: &Etcd, proxy: &Proxy) {
    let before = txns(etcd);
    proxy.deliver_late();
    until("the late request is executed", async || txns(etcd) > before).await;
}

/// The key of a claim in the store.
pub(crate) fn key_of(etcd: &Etcd, claim: &Claim) -> String {
    let id = claim.id().to_string();
    etcd.keys("").unwrap().into_iter().find(|key| key.ends_with(&id)).unwrap()
}

/// The key of a grant in the store, from its evidence.
pub(crate) fn key_of_grant(grant: &Grant) -> &str {
    match grant.evidence() {
        Some(Evidence::CreateRevision { key, .. }) => key,
        other => panic!("another kind of evidence: {other:?}"),
    }
}

/// The lease of a session, from its epoch key; for servers with one session.
pub(crate) fn lease_of_only_session(etcd: &Etcd) -> i64 {
    let keys = etcd.keys("lockkit/:clients/").unwrap();
    let lease = keys[0].strip_prefix("lockkit/:clients/").unwrap().split('/').next().unwrap();
    i64::from_str_radix(lease, 16).unwrap()
}

/// A plain etcd client, for what other programs and operators do.
pub(crate) async fn plain(etcd: &Etcd) -> etcd_client::Client {
    etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap()
}

/// The password of every user.
pub(crate) const PASSWORD: &str = "hunter2";

/// Turns authentication on; returns the server and its URL with the login of the user `app`.
pub(crate) fn with_login(etcd: anyhow::Result<Etcd>) -> (Etcd, String) {
    let mut etcd = etcd.unwrap();
    etcd.enable_auth("app", PASSWORD).unwrap();
    let url = url_as("app", &etcd);
    (etcd, url)
}

/// The URL of the server with the login of this user.
pub(crate) fn url_as(user: &str, etcd: &Etcd) -> String {
    format!("etcd://{user}:{PASSWORD}@{}", etcd.endpoint())
}

/// A plain client of this user.
pub(crate) async fn plain_as(user: &str, etcd: &Etcd) -> etcd_client::Client {
    let login = ConnectOptions::new().with_user(user, PASSWORD);
    etcd_client::Client::connect([etcd.endpoint()], Some(login)).await.unwrap()
}
