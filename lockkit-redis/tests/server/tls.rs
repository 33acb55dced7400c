//! TLS with a real Redis: which clients and servers are trusted, and the errors of the others.

use lockkit_core::{Clock, Error, ErrorKind, LockClient, backend::Backend};
use lockkit_testbed::{Certificates, Direction, Flow, Proxy, Redis, ServerCertificate};

use crate::common::{
    LONG, acquire, assert_error, backend, bounded, enqueued, fresh_name, refusal_of, release, session_at,
};

/// Returns the error of opening a session by this URL.
async fn refused(url: &str) -> Error {
    refusal_of(backend(url)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn trusted_server_grants_and_hands_off() {
    let authority = Certificates::new().unwrap();
    let redis = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let url = authority.trusted_in(&redis.url());
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let next = enqueued(&other, &name).await;
    release(&one, &held).await;
    release(&other, &next.granted().await).await;

    // The certificate is for the server's address, so it does not fit the proxy's.
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let through = format!("rediss://{}", proxy.endpoint());
    assert_error(&refused(&authority.trusted_in(&through)).await, ErrorKind::Denied, "not valid for name");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_trusted_is_refused_with_the_reason() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let good = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    assert_error(&refused(&other.trusted_in(&good.url())).await, ErrorKind::Denied, "UnknownIssuer");
    // Without a `ca`, those of the system are used.
    assert_error(&refused(&good.url()).await, ErrorKind::Denied, "UnknownIssuer");
    let wrong_name = Redis::start_tls(&authority, ServerCertificate::WrongName, false).unwrap();
    assert_error(
        &refused(&authority.trusted_in(&wrong_name.url())).await,
        ErrorKind::Denied,
        "not valid for name",
    );
    let expired = Redis::start_tls(&authority, ServerCertificate::Expired, false).unwrap();
    assert_error(&refused(&authority.trusted_in(&expired.url())).await, ErrorKind::Denied, "expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_may_require_a_client_certificate() {
    let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let redis = Redis::start_tls(&authority, ServerCertificate::Good, true).unwrap();
    let url = authority.trusted_in(&redis.url());
    let session = session_at(&authority.client().unwrap().shown_in(&url), LONG).await;
    release(&session, &acquire(&session, &fresh_name()).await).await;

    // With TLS 1.3 the server may reset the connection before the client has read the alert (RFC 8446, appendix E.6).
    // The two attempts may end in different ways.
    for url in [url.clone(), other.client().unwrap().shown_in(&url)] {
        let backend = backend(&url);
        let session = bounded(backend.open_session(LONG, Clock::boot())).await.unwrap_err();
        let client = bounded(LockClient::builder(backend).build()).await.unwrap_err();
        for error in [session, client] {
            assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_does_not_fall_back_to_plain_text() {
    let authority = Certificates::new().unwrap();
    let plain = Redis::start().unwrap();
    let proxy = Proxy::start(plain.endpoint()).unwrap();
    proxy.set(Direction::Requests, Flow::Hold);
    let url = authority.trusted_in(&format!("rediss://{}", proxy.endpoint()));
    let error = refused(&format!("{url}&request_timeout=200ms")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!proxy.holds("HELLO"), "sent in plain text");
    proxy.pass();
    assert_ne!(refused(&format!("{url}&request_timeout=500ms")).await.kind(), ErrorKind::Unexpected);

    let redis = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();
    let plain_text_url = format!("redis://{}/?request_timeout=1s", redis.endpoint());
    assert_eq!(refused(&plain_text_url).await.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_certificate_files_are_named() {
    let authority = Certificates::new().unwrap();
    let identity = authority.client().unwrap();
    let key = identity.key.display();
    for (options, file) in [
        ("ca=/nowhere/ca.pem".to_owned(), "/nowhere/ca.pem".to_owned()),
        (format!("ca={key}"), key.to_string()),
        (format!("ca={}&cert={key}&key={key}", authority.ca().display()), key.to_string()),
    ] {
        let error = refused(&format!("rediss://127.0.0.1:1/?{options}")).await;
        assert_error(&error, ErrorKind::InvalidConfig, &file);
    }
}
