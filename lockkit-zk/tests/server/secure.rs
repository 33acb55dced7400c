//! TLS and SASL towards a real ZooKeeper: who is let in, and what the others are told.

#[cfg(feature = "sasl")]
mod sasl {
    use lockkit_core::ErrorKind;
    use lockkit_testbed::{ZooKeeper, ZooKeeperOptions};

    use crate::common::{LONG, acquire, fresh_name, refusal, release, session_at};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_asks_for_a_login_lets_in_who_has_it() {
        let login = Some(("app".to_owned(), "hunter2".to_owned()));
        let server = ZooKeeper::start_with(ZooKeeperOptions { login, ..Default::default() }).unwrap();
        let at = |login: &str| format!("zk://{login}@{}/?login=sasl", server.endpoint());
        let (session, name) = (session_at(&at("app:hunter2"), LONG).await, fresh_name());
        release(&session, &acquire(&session, &name).await).await;
        for wrong in ["app:sesame", "nobody:hunter2"] {
            let error = refusal(&at(wrong)).await;
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hunter") && !text.contains("sesame"), "{text}");
        }
        let error = refusal(&server.url()).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

#[cfg(not(feature = "sasl"))]
#[tokio::test]
async fn a_login_that_this_build_does_not_have_is_refused() {
    let error = crate::common::refusal("zk://app:hunter2@127.0.0.1:1/?login=sasl").await;
    assert_eq!(error.kind(), lockkit_core::ErrorKind::Unsupported, "{error}");
}

#[cfg(feature = "tls")]
mod tls {
    use lockkit_core::{Error, ErrorKind};
    use lockkit_testbed::{Certificates, Proxy, ServerCertificate, ZooKeeper};

    use crate::common::{
        LONG, acquire, backend, beat, enqueued, fresh_name, is_renewed, refusal_of, release, says, session_at,
    };

    /// Why this URL does not get a session.
    async fn refused(url: &str) -> Error {
        refusal_of(backend(url)).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_trusted_server_serves() {
        let authority = Certificates::new().unwrap();
        let server = ZooKeeper::start_tls(&authority, ServerCertificate::Good, false).unwrap();
        let (session, name) = (session_at(&authority.trusted_in(&server.url()), LONG).await, fresh_name());
        let held = acquire(&session, &name).await;
        let waiting = enqueued(&session, &name).await;
        assert!(is_renewed(&beat(&session, &[&held]).await.holds[0].1));
        release(&session, &held).await;
        release(&session, &waiting.granted().await).await;
        // The certificate names the server's address, so through a proxy it is another server's.
        let proxy = Proxy::start(server.endpoint()).unwrap();
        let through = format!("zks://{}", proxy.endpoint());
        says(&refused(&authority.trusted_in(&through)).await, ErrorKind::Denied, "not valid for name");
        // Those of the system, and another one.
        says(&refused(&server.url()).await, ErrorKind::Denied, "UnknownIssuer");
        let other = Certificates::new().unwrap();
        says(&refused(&other.trusted_in(&server.url())).await, ErrorKind::Denied, "UnknownIssuer");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_may_ask_who_is_there() {
        let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let server = ZooKeeper::start_tls(&authority, ServerCertificate::Good, true).unwrap();
        let url = authority.trusted_in(&server.url());
        let (known, stranger) = (authority.client().unwrap(), other.client().unwrap());
        let (session, name) = (session_at(&known.shown_in(&url), LONG).await, fresh_name());
        release(&session, &acquire(&session, &name).await).await;
        says(&refused(&url).await, ErrorKind::Denied, "cannot connect");
        says(&refused(&stranger.shown_in(&url)).await, ErrorKind::Denied, "cannot connect");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn unusable_files_and_names_are_told_before_anything_is_sent() {
        let authority = Certificates::new().unwrap();
        for url in [
            "zks://127.0.0.1:1/?ca=/no/such/file.pem".to_owned(),
            format!("zks://127.0.0.1:1/?ca={}", file!()),
            authority.trusted_in("zks://not_a..name:1"),
        ] {
            let error = refused(&url).await;
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        }
    }
}
