//! TLS towards a real Redis: who is let in, and what the others are told.

use lockkit_core::{Clock, Error, ErrorKind, LockClient, backend::Backend};
use lockkit_testbed::{Certificates, Direction, Flow, Identity, Proxy, Redis, ServerCertificate};

use crate::common::{LONG, acquire, backend, bounded, enqueued, fresh_name, release, session_at};

fn trusting(url: &str, authority: &Certificates) -> String {
    format!("{url}/?ca={}", authority.ca().display())
}

fn shown(url: &str, identity: &Identity) -> String {
    format!("{url}&cert={}&key={}", identity.certificate.display(), identity.key.display())
}

/// Why this URL does not get a session, also when it is asked for a client that would retry.
async fn refusal(url: &str) -> Error {
    let error = bounded(backend(url).open_session(LONG, Clock::boot())).await.err().unwrap();
    let client = bounded(LockClient::builder(backend(url)).build()).await.err().unwrap();
    assert_eq!(error.kind(), client.kind());
    error
}

#[track_caller]
fn says(error: &Error, kind: ErrorKind, cause: &str) {
    assert!(error.kind() == kind && error.to_string().contains(cause), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_server_serves_and_hands_over() {
    let authority = Certificates::new().unwrap();
    let redis = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let url = trusting(&redis.url(), &authority);
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let next = enqueued(&other, &name).await;
    release(&one, &held).await;
    release(&other, &next.granted().await).await;

    // The certificate names the server's address, so through a proxy it is another server's.
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let through = format!("rediss://{}", proxy.endpoint());
    says(&refusal(&trusting(&through, &authority)).await, ErrorKind::Denied, "not valid for name");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_trusted_is_refused_with_the_reason() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let good = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    says(&refusal(&trusting(&good.url(), &other)).await, ErrorKind::Denied, "UnknownIssuer");
    // Without an authority of its own, those of the system.
    says(&refusal(&good.url()).await, ErrorKind::Denied, "UnknownIssuer");
    let wrong_name = Redis::start_tls(&authority, ServerCertificate::WrongName, false).unwrap();
    says(&refusal(&trusting(&wrong_name.url(), &authority)).await, ErrorKind::Denied, "not valid for name");
    let expired = Redis::start_tls(&authority, ServerCertificate::Expired, false).unwrap();
    says(&refusal(&trusting(&expired.url(), &authority)).await, ErrorKind::Denied, "expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_ask_who_is_there() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let redis = Redis::start_tls(&authority, ServerCertificate::Good, true).unwrap();
    let url = trusting(&redis.url(), &authority);
    let session = session_at(&shown(&url, &authority.client().unwrap()), LONG).await;
    release(&session, &acquire(&session, &fresh_name()).await).await;

    // By TLS 1.3 the server may reset the connection before the reason has been read (RFC 8446, appendix E.6).
    for url in [url.clone(), shown(&url, &other.client().unwrap())] {
        let error = refusal(&url).await;
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_falls_back_to_a_connection_without_tls() {
    let authority = Certificates::new().unwrap();
    let plain = Redis::start().unwrap();
    let proxy = Proxy::start(plain.endpoint()).unwrap();
    proxy.set(Direction::Requests, Flow::Hold);
    let url = trusting(&format!("rediss://{}", proxy.endpoint()), &authority);
    let error = refusal(&format!("{url}&request_timeout=200ms")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!proxy.holds("HELLO"), "spoken in the clear");
    proxy.pass();
    assert_ne!(refusal(&format!("{url}&request_timeout=500ms")).await.kind(), ErrorKind::Unexpected);

    let redis = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let in_the_clear = format!("redis://{}/?request_timeout=1s", redis.endpoint());
    assert_eq!(refusal(&in_the_clear).await.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_no_certificates_are_named() {
    let authority = Certificates::new().unwrap();
    let identity = authority.client().unwrap();
    let key = identity.key.display();
    for (options, file) in [
        ("ca=/nowhere/ca.pem".to_owned(), "/nowhere/ca.pem".to_owned()),
        (format!("ca={key}"), key.to_string()),
        (format!("ca={}&cert={key}&key={key}", authority.ca().display()), key.to_string()),
    ] {
        let error = refusal(&format!("rediss://127.0.0.1:1/?{options}")).await;
        says(&error, ErrorKind::InvalidConfig, &file);
    }
}
