//! Addresses and logins that are wrong: the error names the server, and says what to do.

use lockkit_core::{Error, ErrorKind};
use lockkit_testbed::{Etcd, Redis, RedisReplicas, RedisSentinels, ZooKeeper};

use crate::common::{LONG, acquire, assert_error, backend, fresh_name, refusal_of, session_at, shared};

async fn refused(url: &str) -> Error {
    refusal_of(backend(url)).await
}

/// Asserts that the error is of this kind and has all of these texts.
#[track_caller]
fn assert_says(error: &Error, kind: ErrorKind, texts: &[&str]) {
    for text in texts {
        assert_error(error, kind, text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_servers_are_all_named_with_their_reasons() {
    let [one, other, socket] = ["127.0.0.1:1", "127.0.0.1:2", "/nowhere/redis.sock"];
    for url in [
        format!("redis://{one},{other}"),
        format!("redis+sentinel://{one},{other}/main"),
        format!("redis+cluster://{one},{other}"),
        format!("redlock://{one},{other},127.0.0.1:3"),
    ] {
        let error = match url.strip_prefix("redlock") {
            None => refused(&url).await,
            Some(_) => {
                let url = lockkit_core::backend::BackendUrl::parse(&url).unwrap();
                let config = lockkit_redis::RedlockConfig::from_url(url).unwrap();
                refusal_of(lockkit_redis::RedlockBackend::new(config)).await
            }
        };
        let why = |server: &str| format!("{server}: Connection refused");
        assert_says(&error, ErrorKind::Unavailable, &[&why(one), &why(other)]);
        assert_eq!(error.to_string().matches(one).count(), 1, "{error}");
    }
    assert_error(
        &refused(&format!("redis://{one}")).await,
        ErrorKind::Unavailable,
        "127.0.0.1:1: Connection",
    );
    assert_error(&refused(&format!("redis+unix://{socket}")).await, ErrorKind::Unavailable, socket);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_server_is_named() {
    let redis = Redis::start().unwrap();
    redis.pause().unwrap();
    for url in ["redis://", "redis+cluster://"].map(|scheme| format!("{scheme}{}", redis.endpoint())) {
        let error = refused(&format!("{url}/?request_timeout=300ms")).await;
        assert_error(&error, ErrorKind::Unavailable, &redis.endpoint());
    }
    redis.resume().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn port_of_another_program_is_questioned() {
    let (etcd, zookeeper) = (Etcd::start().unwrap(), ZooKeeper::start().unwrap());
    let etcd = etcd.endpoint().replace("http://", "");
    for endpoint in [&*etcd, &*zookeeper.endpoint()] {
        for url in [
            format!("redis://{endpoint}"),
            format!("redis+sentinel://{endpoint}/main"),
            format!("redis+cluster://{endpoint}"),
        ] {
            assert_says(&refused(&url).await, ErrorKind::Unavailable, &[endpoint, "is this a Redis server?"]);
        }
    }
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn tls_where_there_is_none_and_none_where_it_is_are_questioned() {
    let authority = lockkit_testbed::Certificates::new().unwrap();
    let shows = lockkit_testbed::ServerCertificate::Good;
    let (plain, tls) = (shared(), Redis::start_tls(&authority, shows, false).unwrap());
    let error = refused(&format!("redis://{}", tls.endpoint())).await;
    assert_says(&error, ErrorKind::Unavailable, &[&tls.endpoint(), "with TLS, the URL begins with rediss"]);
    let url = authority.trusted_in(&format!("rediss://{}", plain.endpoint()));
    let error = refused(&format!("{url}&request_timeout=500ms")).await;
    assert_says(
        &error,
        ErrorKind::Unavailable,
        &[&plain.endpoint(), "without TLS, the URL begins with redis"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn server_of_another_role_is_refused_with_the_right_scheme() {
    let (sentinels, plain) = (RedisSentinels::start().unwrap(), shared().endpoint());
    let [sentinel, other] = [0, 1].map(|number| sentinels.sentinel(number).endpoint());
    let node = Redis::start_with(&["--cluster-enabled", "yes"]).unwrap();
    for (url, advice) in [
        (format!("redis://{sentinel}"), "redis+sentinel://"),
        (format!("redis://{sentinel},{other}"), "redis+sentinel://"),
        (format!("redis+cluster://{sentinel}"), "no node of a cluster"),
        (format!("redis+sentinel://{plain}/main"), "no Sentinel"),
        (format!("redis+cluster://{plain}"), "use redis://"),
    ] {
        assert_error(&refused(&url).await, ErrorKind::InvalidConfig, advice);
    }
    let error = refused(&format!("redis://{}/1", node.endpoint())).await;
    assert_error(&error, ErrorKind::InvalidConfig, "redis+cluster://");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_without_a_master_are_named() {
    let nodes = RedisReplicas::start().unwrap();
    let [one, other] = [1, 2].map(|number| nodes.node(number).endpoint());
    let error = refused(&format!("redis://{one},{other}")).await;
    let why = [one, other].map(|server| format!("{server}: not a master"));
    assert_says(&error, ErrorKind::Unavailable, &[&why[0], &why[1]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_password_is_denied_with_what_to_do() {
    let redis = Redis::start().unwrap();
    redis.cli(&["CONFIG", "SET", "requirepass", "s3cret"]).unwrap();
    let endpoint = redis.endpoint();
    for url in [format!("redis://{endpoint}"), format!("redis+cluster://{endpoint}")] {
        let error = refused(&url).await;
        assert_says(&error, ErrorKind::Denied, &[&endpoint, "LOCKKIT_PASSWORD", "redis://default@HOST"]);
    }
    let error = refused(&format!("redis+sentinel://{endpoint}/main")).await;
    assert_says(&error, ErrorKind::Denied, &[&endpoint, "sentinel_password_file"]);
    assert!(!error.to_string().contains("LOCKKIT_PASSWORD"), "{error}");
    // A password alone is that of the user `default`.
    for login in [":s3cret", "default:s3cret"] {
        acquire(&session_at(&format!("redis://{login}@{endpoint}"), LONG).await, &fresh_name()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_database_is_invalid_config() {
    let error = refused(&format!("{}/99", shared().url())).await;
    assert_says(&error, ErrorKind::InvalidConfig, &[&shared().endpoint(), "database"]);
}
