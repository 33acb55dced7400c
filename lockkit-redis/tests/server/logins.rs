//! Servers that refuse a login, for good or for the moment.

use lockkit_core::{Clock, ErrorKind, backend::Backend};
use lockkit_testbed::{Proxy, Redis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{LONG, backend, bounded, fresh_name, release, session_at, start, try_acquire, until};

/// Cuts the connections. Returns once two attempts to reconnect have failed.
async fn refused_twice(proxy: &Proxy) {
    let before = proxy.counts().accepted;
    proxy.reset_clients();
    // The first failure is known before the second attempt begins.
    until("reconnects have failed", async || proxy.counts().accepted >= before + 2).await;
}

/// The server's error has no code of its own.
#[tokio::test(flavor = "multi_thread")]
async fn acquire_waits_for_a_server_with_too_many_clients() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let (one, name) = (session_at(&format!("redis://{}", proxy.endpoint()), LONG).await, fresh_name());
    let mut others = Vec::new();
    for _ in 0..3 {
        let mut other = tokio::net::TcpStream::connect(redis.endpoint()).await.unwrap();
        other.write_all(b"PING\r\n").await.unwrap();
        other.read_exact(&mut [0; "+PONG\r\n".len()]).await.unwrap();
        others.push(other);
    }
    redis.cli(&["CONFIG", "SET", "maxclients", "3"]).unwrap();
    refused_twice(&proxy).await;
    let error = try_acquire(&one, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let waiting = start(&one, &name);
    refused_twice(&proxy).await;
    assert!(waiting.is_waiting());
    others.clear();
    waiting.granted().await;
}

/// The choice of a database is the only request of a login that such a server refuses.
#[tokio::test(flavor = "multi_thread")]
async fn reconnect_to_a_database_waits_for_a_server_busy_with_a_script() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let (one, name) = (session_at(&format!("redis://{}/3", proxy.endpoint()), LONG).await, fresh_name());
    let script = redis.keep_busy().unwrap();
    refused_twice(&proxy).await;
    let error = try_acquire(&one, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let waiting = start(&one, &name);
    refused_twice(&proxy).await;
    assert!(waiting.is_waiting());
    redis.cli(&["SCRIPT", "KILL"]).unwrap();
    let grant = waiting.granted().await;
    drop(script);
    assert_eq!(redis.keys(name.as_str()).unwrap(), [""; 0], "in database 0");
    release(&one, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_without_the_right_to_a_database_is_denied() {
    let redis = Redis::start().unwrap();
    redis.cli(&["ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all", "-select"]).unwrap();
    let url = format!("redis://app:right@{}/3", redis.endpoint());
    let error = bounded(backend(&url).open_session(LONG, Clock::boot())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}
