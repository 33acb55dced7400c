//! Servers that accept connections and do not answer, among servers that do.

use std::{sync::Arc, time::Duration};

use lockkit_core::backend::{Renewal, Session};
use lockkit_testbed::{Direction, Flow, Proxy, ZooKeeper};
use tokio::task::JoinSet;

use crate::common::{LONG, bounded, heartbeat, is_renewed, own_server, session_at, until};

/// So many sessions that each order of the servers, which is random, is that of one of them.
const SESSIONS: usize = 16;

/// Starts proxies in front of this server; returns them with the URL of all of them.
fn proxies<const COUNT: usize>(server: &ZooKeeper, options: &str) -> ([Proxy; COUNT], String) {
    let proxies = [(); COUNT].map(|()| Proxy::start(server.endpoint()).unwrap());
    let servers = proxies.each_ref().map(Proxy::endpoint).join(",");
    (proxies, format!("zk://{servers}/?{options}"))
}

fn silence(proxy: &Proxy) {
    for direction in [Direction::Requests, Direction::Replies] {
        proxy.set(direction, Flow::Hold);
    }
}

/// Opens this many sessions at the same time.
async fn sessions(url: &str, ttl: Duration) -> Vec<Arc<dyn Session>> {
    let mut opening = JoinSet::new();
    for _ in 0..SESSIONS {
        let url = url.to_owned();
        opening.spawn(async move { session_at(&url, ttl).await });
    }
    bounded(opening.join_all()).await
}

/// Whether a heartbeat has renewed each of these sessions.
async fn are_renewed(sessions: &[Arc<dyn Session>]) -> bool {
    let mut heartbeats = JoinSet::new();
    for session in sessions.iter().map(Arc::clone) {
        heartbeats.spawn(async move { heartbeat(&session, &[]).await.session });
    }
    let renewals = heartbeats.join_all().await;
    assert!(!renewals.iter().any(|renewal| matches!(renewal, Renewal::Gone)), "a session is lost");
    renewals.iter().all(is_renewed)
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_server_of_two_prevents_no_session() {
    let server = own_server();
    let (proxies, url) = proxies::<2>(&server, "request_timeout=5s");
    silence(&proxies[0]);
    sessions(&url, LONG).await;
}

/// The server of the session falls silent, and two others are.
#[tokio::test(flavor = "multi_thread")]
async fn session_survives_three_silent_servers_in_a_row() {
    const TTL: Duration = Duration::from_secs(20);
    let server = own_server();
    // What a heartbeat proves depends on the tick. A fifth of the ttl is less than the time of one request.
    let (proxies, url) = proxies::<4>(&server, "tick=1ms&request_timeout=10s");
    let sessions = sessions(&url, TTL).await;
    for _ in 0..2 {
        assert!(are_renewed(&sessions).await);
    }
    proxies[1..].iter().for_each(silence);
    until("all sessions have found the last server", async || are_renewed(&sessions).await).await;
}
