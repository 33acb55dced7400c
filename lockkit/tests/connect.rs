//! URLs that work, and those that do not, each with an error that helps.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are not recognised as tests")]

use std::time::Duration;

use lockkit::{Error, ErrorKind, connect};

async fn refused(url: &str) -> Error {
    connect(url).await.expect_err(url)
}

#[tokio::test]
async fn all_clients_of_memory_exclude_each_other() {
    let (one, other) = (connect("memory:").await.unwrap(), connect("memory:?label=b").await.unwrap());
    let guard = one.lock("connect").unwrap().acquire().await.unwrap();
    assert!(other.lock("connect").unwrap().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(other.lock("connect").unwrap().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn ttl_and_label_are_options_of_every_url() {
    let client = connect("memory:?ttl=20500ms&label=nightly%20import").await.unwrap();
    assert_eq!(client.ttl(), Duration::from_millis(20_500));
    let _guard = client.lock("labelled").unwrap().acquire().await.unwrap();
    let holder = client.inspect("labelled").await.unwrap().holder.unwrap();
    assert_eq!(holder.metadata.unwrap().label.as_deref(), Some("nightly import"));
}

#[tokio::test]
async fn error_for_an_unknown_scheme_lists_the_known_ones() {
    for url in ["zookeeper://127.0.0.1", "http://127.0.0.1:2379"] {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        for scheme in lockkit::schemes() {
            assert!(error.to_string().contains(scheme), "{error}");
        }
    }
}

#[tokio::test]
async fn mistakes_in_a_url_are_named() {
    let long_label = format!("memory:?label={}", "x".repeat(lockkit::limits::LABEL_BYTES_MAX + 1));
    for (url, named) in [
        ("", "not a URL"),
        ("memory", "not a URL"),
        ("memory:?ttl=0s", "ttl"),
        ("memory:?ttl=soon", "ttl"),
        ("memory:?ttl=10years", "exceeds"),
        ("memory:?tttl=10s", "tttl"),
        ("memory:?ttl=1s&ttl=2s", "twice"),
        ("memory://somewhere", "no host"),
        (&long_label, "label"),
    ] {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
        assert!(error.to_string().contains(named), "{url}: {error}");
    }
}

#[cfg(not(feature = "file"))]
#[tokio::test]
async fn a_feature_that_is_off_is_named() {
    let error = refused("file:///var/lib/locks").await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("feature \"file\"") && text.contains("memory"), "{text}");
}

/// Two tests in one process, each with a clock of its own.
#[test]
fn a_paused_clock_ends_no_lock_at_a_memory_server_of_another_name() {
    let runtime = |paused| {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(paused).build().unwrap()
    };
    let (real, paused) = (runtime(false), runtime(true));
    let guard = real.block_on(async {
        let client = connect("memory:real").await.unwrap();
        client.lock("job").unwrap().acquire().await.unwrap()
    });
    paused.block_on(async {
        let client = connect("memory:paused").await.unwrap();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(client.lock("job").unwrap().try_acquire().await.unwrap().is_some(), "a server of its own");
    });
    real.block_on(async {
        let next = connect("memory:real").await.unwrap();
        assert!(next.lock("job").unwrap().try_acquire().await.unwrap().is_none(), "still held");
        guard.release().await.unwrap();
    });
}

#[cfg(feature = "file")]
#[tokio::test]
async fn files_lock() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}?label=x", folder.path().display());
    let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    assert_eq!(one.ttl(), Duration::MAX);
    let guard = one.lock("a/b").unwrap().acquire().await.unwrap();
    assert!(other.lock("a/b").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(guard.remaining(), Duration::MAX);
    guard.release().await.unwrap();
    assert_eq!(refused(&format!("{url}&names=raw")).await.kind(), ErrorKind::InvalidConfig);
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn absent_etcd_is_unavailable_and_its_password_is_not_shown() {
    let error = refused("etcd://me:hunter2@127.0.0.1:1/?ttl=10s").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    let options = refused("etcd://127.0.0.1:1/?tttl=10s").await;
    assert_eq!(options.kind(), ErrorKind::InvalidConfig, "{options}");
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn absent_redis_is_unavailable_and_its_password_is_not_shown() {
    for scheme in
        lockkit::redis::SCHEMES.into_iter().filter(|scheme| lockkit::schemes().any(|known| known == *scheme))
    {
        let path = if scheme.ends_with("sentinel") { "main" } else { "" };
        let url = match scheme {
            "redis+unix" => format!("{scheme}://me:hunter2@localhost/nowhere/redis.sock"),
            _ => format!("{scheme}://me:hunter2@127.0.0.1:1/{path}"),
        };
        let error = refused(&format!("{url}?request_timeout=500ms")).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let options = refused("redis://127.0.0.1:1/?tttl=10s").await;
    assert_eq!(options.kind(), ErrorKind::InvalidConfig, "{options}");
}

#[cfg(not(feature = "redis"))]
#[tokio::test]
async fn redis_is_named_where_it_is_off() {
    let error = refused("redis+cluster://127.0.0.1").await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("feature \"redis\""), "{error}");
}
