//! Servers that open no session: each is named, with the reason and what to do.

use lockkit_core::{Error, ErrorKind, backend::Backend};
use lockkit_testbed::{Etcd, Proxy, Redis, ZooKeeperEnsemble};

use crate::common::{assert_error, backend, bounded, fresh_name, own_server, refusal, shared};

/// Returns the URL of these servers, with a short time for each request.
fn url_of(servers: &[String]) -> String {
    format!("zk://{}/?request_timeout=1s", servers.join(","))
}

/// Returns why none of these servers opens a session.
async fn refused_by(servers: &[String]) -> Error {
    refusal(&url_of(servers)).await
}

/// Returns what the servers at this URL are recognised as. On a busy machine, an answer may come too late for that.
/// Then they are asked again.
async fn recognised(url: &str) -> Error {
    const TOO_LATE: [&str; 3] =
        ["no connection within", "accepts the connection and does not answer", "it closes the connection"];
    let answered = async {
        loop {
            let error = refusal(url).await;
            let text = error.to_string();
            if !TOO_LATE.iter().any(|why| text.contains(why)) {
                return error;
            }
        }
    };
    bounded(answered).await
}

/// Returns a port at which nobody listens.
fn closed_port() -> String {
    let mut server = Redis::start().unwrap();
    server.kill().unwrap();
    server.endpoint()
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_servers_are_all_named() {
    let servers = [closed_port(), closed_port(), "no-such-host.invalid:2181".to_owned()];
    let error = refused_by(&servers).await;
    for server in &servers[..2] {
        assert_error(&error, ErrorKind::Unavailable, &format!("{server}: Connection refused"));
    }
    assert_error(&error, ErrorKind::Unavailable, &format!("{}: ", servers[2]));
    assert_eq!(error.operation(), "open session");
    // So do the requests of operators.
    let (backend, name) = (backend(&format!("zk://{}", servers[0])), fresh_name());
    let operator = backend.admin().unwrap();
    let holder = lockkit_core::backend::Contender::new("lock-0000000001", None, None);
    for error in [
        bounded(operator.inspect(&name)).await.unwrap_err(),
        bounded(operator.list("", None, 1)).await.unwrap_err(),
        bounded(operator.break_lock(&name, &holder)).await.unwrap_err(),
    ] {
        assert_error(&error, ErrorKind::Unavailable, &format!("{}: Connection refused", servers[0]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_request_of_an_operator_names_itself_and_its_lock() {
    let (backend, name) = (backend(&url_of(&[closed_port()])), fresh_name());
    let operator = backend.admin().unwrap();
    let holder = lockkit_core::backend::Contender::new("lock-0000000001", None, None);
    let errors = [
        bounded(operator.inspect(&name)).await.unwrap_err(),
        bounded(operator.list("", None, 1)).await.unwrap_err(),
        bounded(operator.break_lock(&name, &holder)).await.unwrap_err(),
    ];
    let named = errors.each_ref().map(|error| (error.operation(), error.lock()));
    assert_eq!(named, [("inspect", Some(&name)), ("list locks", None), ("break", Some(&name))]);
}

/// Each of them is asked for a session once, and not until the time limit.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_refuse_connections_are_reported_at_once() {
    let servers = [closed_port(), closed_port()];
    // Longer than this test may take.
    let error = refusal(&format!("zk://{}/?request_timeout=60s", servers.join(","))).await;
    assert_error(&error, ErrorKind::Unavailable, "Connection refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_servers_are_recognised() {
    let (redis, etcd) = (Redis::start().unwrap(), Etcd::start().unwrap());
    let named = [(redis.endpoint(), "it speaks Redis"), (etcd.endpoint(), "it speaks HTTP (etcd?)")];
    for (server, why) in &named {
        let error = recognised(&url_of(std::slice::from_ref(server))).await;
        assert_error(&error, ErrorKind::InvalidConfig, &format!("{server}: {why}, not ZooKeeper"));
    }
    // One that is down may be the right one.
    let closed = closed_port();
    let error = recognised(&url_of(&[named[0].0.clone(), closed.clone()])).await;
    assert_error(&error, ErrorKind::Unavailable, &format!("{}: it speaks Redis", named[0].0));
    assert_error(&error, ErrorKind::Unavailable, &format!("{closed}: Connection refused"));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_server_is_told_from_one_that_closes_connections() {
    let server = own_server();
    server.pause().unwrap();
    let error = refused_by(&[server.endpoint()]).await;
    let why = format!("{}: it accepts the connection and does not answer", server.endpoint());
    assert_error(&error, ErrorKind::Unavailable, &why);
    server.resume().unwrap();
    let proxy = Proxy::start(shared().endpoint()).unwrap();
    proxy.refuse_new();
    // The reset comes before the connection is made, or after.
    let error = refused_by(&[proxy.endpoint()]).await;
    assert_error(&error, ErrorKind::Unavailable, &format!("{}: ", proxy.endpoint()));
    let text = error.to_string().to_lowercase();
    assert!(text.contains("connection") && !text.contains("not answer"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ensemble_without_a_quorum_is_recognised() {
    let mut ensemble = ZooKeeperEnsemble::start().unwrap();
    let dead = ensemble.member(0).endpoint();
    for member in 0..2 {
        ensemble.member_mut(member).kill().unwrap();
    }
    let alone = ensemble.member(2).endpoint();
    crate::common::until("it has noticed", async || {
        refused_by(std::slice::from_ref(&alone)).await.to_string().contains("its ensemble has no quorum")
    })
    .await;
    let error = recognised(&url_of(&[dead.clone(), alone.clone()])).await;
    assert_error(&error, ErrorKind::Unavailable, &format!("{dead}: Connection refused"));
    assert_error(&error, ErrorKind::Unavailable, &format!("{alone}: it is ZooKeeper and does not serve"));
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn tls_on_one_side_alone_is_recognised() {
    use lockkit_testbed::{Certificates, ServerCertificate, ZooKeeper};
    let authority = Certificates::new().unwrap();
    let with_tls = ZooKeeper::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let error = recognised(&url_of(&[with_tls.endpoint()])).await;
    let why = format!("{}: it speaks TLS here; use zks://", with_tls.endpoint());
    assert_error(&error, ErrorKind::InvalidConfig, &why);
    let plain = shared().endpoint();
    let error = recognised(&authority.trusted_in(&format!("zks://{plain}"))).await;
    let why = format!("{plain}: it speaks ZooKeeper without TLS here; use zk://");
    assert_error(&error, ErrorKind::InvalidConfig, &why);
    // The programs of other stores speak TLS in ways of their own.
    let redis = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let etcd = Etcd::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    for url in [redis.url(), etcd.url()] {
        let server = url.split_once("://").unwrap().1.to_owned();
        let error = recognised(&url_of(&[server])).await;
        assert_error(&error, ErrorKind::InvalidConfig, "it speaks TLS here");
    }
}

/// The one that is down may be the right one, so a client that waits for the store must not give up.
#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn untrusted_server_and_one_that_is_down_are_unavailable() {
    use lockkit_testbed::{Certificates, ServerCertificate, ZooKeeper};
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let untrusted = ZooKeeper::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let servers = format!("{},{}", untrusted.url(), closed_port());
    let error = refusal(&other.trusted_in(&servers)).await;
    assert_error(&error, ErrorKind::Unavailable, "UnknownIssuer");
    assert_error(&error, ErrorKind::Unavailable, "Connection refused");
}
