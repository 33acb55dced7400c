//! What an error says about the servers that were tried: each by its address, with the reason.

use lockkit_core::{Clock, Error, ErrorKind, backend::Backend};
use lockkit_testbed::{Etcd, Redis, ZooKeeper};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::common::{
    LONG, PASSWORD, acquire, assert_error, backend, bounded, fresh_name, own_server, release, session_at,
    with_login,
};

/// A port where nothing listens.
const CLOSED: &str = "127.0.0.1:1";

async fn open(url: &str) -> Error {
    bounded(backend(url).open_session(LONG, Clock::boot())).await.map(drop).unwrap_err()
}

async fn inspect(url: &str) -> Error {
    bounded(backend(url).admin().unwrap().inspect(&fresh_name())).await.map(drop).unwrap_err()
}

/// Starts a server that answers everything with this; returns its address.
async fn answering(with: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection.read(&mut [0; 64]).await;
            let _ = connection.write_all(with.as_bytes()).await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn port_of_another_server_is_recognised() {
    let (redis, zookeeper) = (Redis::start().unwrap(), ZooKeeper::start().unwrap());
    let web = answering("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
    let mail = answering("220 mail.example ESMTP\r\n").await;
    for (endpoint, reason) in [
        (CLOSED.to_owned(), "Connection refused"),
        ("no-such-host.invalid:2379".to_owned(), "lookup"),
        (redis.endpoint(), "answers as a Redis server does"),
        (zookeeper.endpoint(), "closes the connection instead of answering; is this etcd?"),
        (web, "answers with HTTP/1"),
        (mail, "does not answer with HTTP/2"),
    ] {
        let url = format!("etcd://{endpoint}");
        for error in [open(&url).await, inspect(&url).await] {
            assert_error(&error, ErrorKind::Unavailable, &format!("{endpoint}: "));
            assert_error(&error, ErrorKind::Unavailable, reason);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_server_that_was_tried_is_named_with_its_own_reason() {
    let redis = Redis::start().unwrap();
    let etcd = own_server();
    etcd.pause().unwrap();
    let url = format!("etcd://{CLOSED},{},{}/?request_timeout=2s", redis.endpoint(), etcd.endpoint());
    let error = open(&url).await;
    assert_error(&error, ErrorKind::Unavailable, &format!("{CLOSED}: cannot connect: Connection refused"));
    assert_error(&error, ErrorKind::Unavailable, &format!("{}: answers as a Redis server", redis.endpoint()));
    assert_error(&error, ErrorKind::Unavailable, &format!("{}: no answer within 2s", etcd.endpoint()));
    etcd.resume().unwrap();
}

/// A member without its peers answers, but has no leader.
#[tokio::test(flavor = "multi_thread")]
async fn reachable_server_that_cannot_serve_is_named_beside_the_dead_ones() {
    let mut cluster = lockkit_testbed::EtcdCluster::start().unwrap();
    let url = format!("{}/?request_timeout=2s", cluster.url());
    for number in 1..cluster.len() {
        cluster.member_mut(number).kill().unwrap();
    }
    let error = open(&url).await;
    assert_error(&error, ErrorKind::Unavailable, &format!("{}: reachable", cluster.member(0).endpoint()));
    for number in 1..cluster.len() {
        let dead = format!("{}: cannot connect", cluster.member(number).endpoint());
        assert_error(&error, ErrorKind::Unavailable, &dead);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_of_an_open_session_names_its_servers() {
    let mut etcd = Etcd::start().unwrap();
    let url = format!("etcd://{},{CLOSED}/?request_timeout=3s", etcd.endpoint());
    let session = session_at(&url, LONG).await;
    let held = acquire(&session, &fresh_name()).await;
    etcd.kill().unwrap();
    // Not a try: if its request was on its way when the connection broke, it waits until it can withdraw.
    let error = bounded(session.release(&held)).await.unwrap_err();
    assert_error(&error, ErrorKind::Unavailable, &format!("{}, {CLOSED}: ", etcd.endpoint()));
    etcd.restart().unwrap();
    release(&session, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn login_that_does_not_fit_the_server_is_refused_with_the_reason() {
    let (etcd, _) = with_login(Etcd::start());
    let at = etcd.endpoint();
    let url = format!("etcd://{at}");
    for error in [open(&url).await, inspect(&url).await] {
        assert_error(&error, ErrorKind::Denied, "the server asks for a user and a password");
    }
    let wrong = open(&format!("etcd://app:wrong@{at}")).await;
    assert_error(&wrong, ErrorKind::Denied, "authentication failed");
    assert!(!format!("{wrong:#} {wrong:?}").contains("wrong@"), "{wrong:?}");

    let open_to_all = own_server();
    let unneeded = open(&format!("etcd://app:{PASSWORD}@{}", open_to_all.endpoint())).await;
    assert_error(&unneeded, ErrorKind::InvalidConfig, "authentication is not enabled at the server");
    assert!(!format!("{unneeded:#} {unneeded:?}").contains(PASSWORD), "{unneeded:?}");
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn tls_on_one_side_only_is_recognised() {
    use lockkit_testbed::{Certificates, ServerCertificate};

    let authority = Certificates::new().unwrap();
    let secure = Etcd::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let error = open(&format!("etcd://{}", secure.endpoint())).await;
    assert_error(&error, ErrorKind::Unavailable, &format!("{}: wants TLS (etcds://", secure.endpoint()));

    let (etcd, zookeeper) = (own_server(), ZooKeeper::start().unwrap());
    for endpoint in [etcd.endpoint(), zookeeper.endpoint()] {
        let error = open(&authority.trusted_in(&format!("etcds://{endpoint}"))).await;
        assert_error(&error, ErrorKind::Unavailable, &format!("{endpoint}: "));
        assert_error(&error, ErrorKind::Unavailable, "does it speak TLS?");
    }
}
