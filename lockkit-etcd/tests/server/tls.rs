//! TLS with a real etcd: which clients and servers are accepted, and the errors for the others.

use lockkit_core::{Error, ErrorKind};
use lockkit_testbed::{Certificates, Direction, Etcd, Flow, Proxy, ServerCertificate};

use crate::common::{
    LONG, acquire, assert_error, backend, fresh_name, own_server, refusal_of, release, session_at,
};

/// Returns the error of opening a session with this URL.
async fn refused(url: &str) -> Error {
    refusal_of(backend(url)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn trusted_server_is_accepted_under_its_own_name_only() {
    let authority = Certificates::new().unwrap();
    let etcd = Etcd::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let name = fresh_name();
    let session = session_at(&authority.trusted_in(&etcd.url()), LONG).await;
    let grant = acquire(&session, &name).await;
    assert_eq!(etcd.keys(&format!("lockkit/{name}/")).unwrap().len(), 1);
    release(&session, &grant).await;

    // The certificate names the server's address, so it is not valid for the proxy.
    let proxy = Proxy::start(etcd.endpoint()).unwrap();
    let through = format!("etcds://{}", proxy.endpoint());
    assert_error(&refused(&authority.trusted_in(&through)).await, ErrorKind::Denied, "not valid for name");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_trusted_is_refused_with_the_reason() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let good = Etcd::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    assert_error(&refused(&other.trusted_in(&good.url())).await, ErrorKind::Denied, "UnknownIssuer");
    // Without a configured authority, those of the system count.
    assert_error(&refused(&good.url()).await, ErrorKind::Denied, "UnknownIssuer");
    let wrong_name = Etcd::start_tls(&authority, ServerCertificate::WrongName, false).unwrap();
    assert_error(
        &refused(&authority.trusted_in(&wrong_name.url())).await,
        ErrorKind::Denied,
        "not valid for name",
    );
    let expired = Etcd::start_tls(&authority, ServerCertificate::Expired, false).unwrap();
    assert_error(&refused(&authority.trusted_in(&expired.url())).await, ErrorKind::Denied, "expired");
}

/// The others may come back: a client that waits for the store must not give up.
#[tokio::test(flavor = "multi_thread")]
async fn lack_of_trust_is_final_only_if_it_is_true_of_all_servers() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let etcd = Etcd::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    for (second, kind) in [("127.0.0.1:1", ErrorKind::Unavailable), (&*etcd.endpoint(), ErrorKind::Denied)] {
        let url = other.trusted_in(&format!("etcds://{},{second}", etcd.endpoint()));
        // Requests to several servers are retried for half of it.
        let url = format!("{url}&request_timeout=3s");
        assert_error(&refused(&url).await, kind, "UnknownIssuer");
    }
}

/// The others may be back before an operator acts, so a write of the keeper must not give up.
#[tokio::test(flavor = "multi_thread")]
async fn one_server_of_several_that_is_not_trusted_is_no_refusal() {
    let authority = Certificates::new().unwrap();
    let mut etcd = Etcd::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let expired = Etcd::start_tls(&authority, ServerCertificate::Expired, false).unwrap();
    let url = authority.trusted_in(&format!("{},{}", etcd.url(), expired.endpoint()));
    let session = session_at(&format!("{url}&request_timeout=3s"), LONG).await;
    etcd.kill().unwrap();
    // Each request reaches the servers in an order of its own.
    for _ in 0..4 {
        let error = session.elections().unwrap().leader(&fresh_name()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_may_require_a_client_certificate() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let etcd = Etcd::start_tls(&authority, ServerCertificate::Good, true).unwrap();
    let url = authority.trusted_in(&etcd.url());
    let session = session_at(&authority.client().unwrap().shown_in(&url), LONG).await;
    release(&session, &acquire(&session, &fresh_name()).await).await;

    assert_error(&refused(&url).await, ErrorKind::Denied, "ertificate");
    assert_error(&refused(&other.client().unwrap().shown_in(&url)).await, ErrorKind::Denied, "ertificate");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_never_falls_back_to_a_connection_without_tls() {
    let authority = Certificates::new().unwrap();
    let plain = own_server();
    let proxy = Proxy::start(plain.endpoint()).unwrap();
    proxy.set(Direction::Requests, Flow::Hold);
    let url = authority.trusted_in(&format!("etcds://{}", proxy.endpoint()));
    let error = refused(&format!("{url}&request_timeout=200ms")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!proxy.holds("PRI * HTTP/2.0"), "sent without TLS");
    proxy.pass();
    assert_eq!(refused(&url).await.kind(), ErrorKind::Unavailable);

    let etcd = Etcd::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let in_the_clear = format!("etcd://{}/?request_timeout=1s", etcd.endpoint());
    assert_eq!(refused(&in_the_clear).await.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_certificate_files_are_named_in_the_error() {
    let authority = Certificates::new().unwrap();
    let identity = authority.client().unwrap();
    let key = identity.key.display();
    for (options, file) in [
        ("ca=/nowhere/ca.pem".to_owned(), "/nowhere/ca.pem".to_owned()),
        (format!("ca={key}"), key.to_string()),
        (format!("ca={}&cert={key}&key={key}", authority.ca().display()), key.to_string()),
    ] {
        let error = refused(&format!("etcds://127.0.0.1:1/?{options}")).await;
        assert_error(&error, ErrorKind::InvalidConfig, &file);
    }
}
