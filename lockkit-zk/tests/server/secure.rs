//! TLS and SASL towards a real ZooKeeper: which clients are accepted, and which errors the others get.

#[cfg(feature = "sasl")]
mod sasl {
    use lockkit_core::ErrorKind;
    use lockkit_testbed::{ZooKeeper, ZooKeeperOptions};

    use crate::common::{LONG, acquire, assert_error, fresh_name, refusal, release, session_at};

    #[tokio::test(flavor = "multi_thread")]
    async fn sasl_server_accepts_only_the_right_login() {
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
            assert!(text.contains("check the user and the password"), "{text}");
        }
        assert_error(&refusal(&server.url()).await, ErrorKind::Denied, "the servers require a login");
        let digest = format!("zk://app:hunter2@{}", server.endpoint());
        assert_error(&refusal(&digest).await, ErrorKind::Denied, "if they require SASL, use login=sasl");
    }
}

#[cfg(not(feature = "sasl"))]
#[tokio::test]
async fn login_kind_missing_from_this_build_is_refused() {
    let error = crate::common::refusal("zk://app:hunter2@127.0.0.1:1/?login=sasl").await;
    assert_eq!(error.kind(), lockkit_core::ErrorKind::Unsupported, "{error}");
}

#[cfg(feature = "tls")]
mod tls {
    use lockkit_core::{Error, ErrorKind};
    use lockkit_testbed::{Certificates, Proxy, ServerCertificate, ZooKeeper};

    use crate::common::{
        LONG, acquire, assert_error, backend, enqueued, fresh_name, heartbeat, is_renewed, refusal_of,
        release, session_at,
    };

    /// Returns why a session at this URL cannot be opened.
    async fn refused(url: &str) -> Error {
        refusal_of(backend(url)).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn server_with_trusted_certificate_is_used() {
        let authority = Certificates::new().unwrap();
        let server = ZooKeeper::start_tls(&authority, ServerCertificate::Good, false).unwrap();
        let (session, name) = (session_at(&authority.trusted_in(&server.url()), LONG).await, fresh_name());
        let held = acquire(&session, &name).await;
        let waiting = enqueued(&session, &name).await;
        assert!(is_renewed(&heartbeat(&session, &[&held]).await.holds[0].1));
        release(&session, &held).await;
        release(&session, &waiting.granted().await).await;
        // The certificate has the server's address, so it is not valid for the proxy's.
        let proxy = Proxy::start(server.endpoint()).unwrap();
        let through = format!("zks://{}", proxy.endpoint());
        assert_error(
            &refused(&authority.trusted_in(&through)).await,
            ErrorKind::Denied,
            "not valid for name",
        );
        // The system's authorities, and an untrusted one.
        assert_error(&refused(&server.url()).await, ErrorKind::Denied, "UnknownIssuer");
        let other = Certificates::new().unwrap();
        assert_error(&refused(&other.trusted_in(&server.url())).await, ErrorKind::Denied, "UnknownIssuer");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn server_may_require_a_client_certificate() {
        let (authority, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let server = ZooKeeper::start_tls(&authority, ServerCertificate::Good, true).unwrap();
        let url = authority.trusted_in(&server.url());
        let (trusted, untrusted) = (authority.client().unwrap(), other.client().unwrap());
        let (session, name) = (session_at(&trusted.shown_in(&url), LONG).await, fresh_name());
        release(&session, &acquire(&session, &name).await).await;
        assert_error(&refused(&url).await, ErrorKind::Denied, "cannot connect");
        assert_error(&refused(&untrusted.shown_in(&url)).await, ErrorKind::Denied, "cannot connect");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn unusable_tls_files_and_names_fail_before_anything_is_sent() {
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
