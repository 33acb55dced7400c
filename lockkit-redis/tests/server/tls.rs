//! TLS towards a real Redis: who is let in, and what the others are told.

use lockkit_core::{Error, ErrorKind};
use lockkit_testbed::{Certificates, Direction, Flow, Proxy, Redis, ServerCertificate};

use crate::common::{LONG, acquire, backend, enqueued, fresh_name, refusal_of, release, says, session_at};

/// Why this URL does not get a session.
async fn refused(url: &str) -> Error {
    refusal_of(backend(url)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_server_serves_and_hands_over() {
    let authority = Certificates::new().unwrap();
    let redis = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let url = authority.trusted_in(&redis.url());
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let next = enqueued(&other, &name).await;
    release(&one, &held).await;
    release(&other, &next.granted().await).await;

    // The certificate names the server's address, so through a proxy it is another server's.
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let through = format!("rediss://{}", proxy.endpoint());
    says(&refused(&authority.trusted_in(&through)).await, ErrorKind::Denied, "not valid for name");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_trusted_is_refused_with_the_reason() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let good = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    says(&refused(&other.trusted_in(&good.url())).await, ErrorKind::Denied, "UnknownIssuer");
    // Without an authority of its own, those of the system.
    says(&refused(&good.url()).await, ErrorKind::Denied, "UnknownIssuer");
    let wrong_name = Redis::start_tls(&authority, ServerCertificate::WrongName, false).unwrap();
    says(&refused(&authority.trusted_in(&wrong_name.url())).await, ErrorKind::Denied, "not valid for name");
    let expired = Redis::start_tls(&authority, ServerCertificate::Expired, false).unwrap();
    says(&refused(&authority.trusted_in(&expired.url())).await, ErrorKind::Denied, "expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_ask_who_is_there() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let redis = Redis::start_tls(&authority, ServerCertificate::Good, true).unwrap();
    let url = authority.trusted_in(&redis.url());
    let session = session_at(&authority.client().unwrap().shown_in(&url), LONG).await;
    release(&session, &acquire(&session, &fresh_name()).await).await;

    // By TLS 1.3 the server may reset the connection before the reason has been read (RFC 8446, appendix E.6).
    for url in [url.clone(), other.client().unwrap().shown_in(&url)] {
        let error = refused(&url).await;
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_falls_back_to_a_connection_without_tls() {
    let authority = Certificates::new().unwrap();
    let plain = Redis::start().unwrap();
    let proxy = Proxy::start(plain.endpoint()).unwrap();
    proxy.set(Direction::Requests, Flow::Hold);
    let url = authority.trusted_in(&format!("rediss://{}", proxy.endpoint()));
    let error = refused(&format!("{url}&request_timeout=200ms")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!proxy.holds("HELLO"), "spoken in the clear");
    proxy.pass();
    assert_ne!(refused(&format!("{url}&request_timeout=500ms")).await.kind(), ErrorKind::Unexpected);

    let redis = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let in_the_clear = format!("redis://{}/?request_timeout=1s", redis.endpoint());
    assert_eq!(refused(&in_the_clear).await.kind(), ErrorKind::Unavailable);
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
        let error = refused(&format!("rediss://127.0.0.1:1/?{options}")).await;
        says(&error, ErrorKind::InvalidConfig, &file);
    }
}
