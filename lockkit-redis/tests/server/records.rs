//! Records, which only the holder of the lock writes.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    ErrorKind, LockName,
    backend::{Grant, Session},
};
use lockkit_testbed::Redis;

use crate::common::{LONG, acquire, bounded, fresh_name, release, session, shared, side};

const KEEP: Duration = Duration::from_secs(1000);

async fn read(session: &Arc<dyn Session>, name: &LockName) -> Option<String> {
    bounded(session.records().unwrap().read(name)).await.unwrap()
}

async fn write(session: &Arc<dyn Session>, grant: &Grant, record: &str) -> bool {
    bounded(session.records().unwrap().write(grant, record, KEEP)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn record_outlives_its_writer_and_expires() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    assert_eq!(read(&one, &name).await, None);
    let held = acquire(&one, &name).await;
    for text in ["", "first\n\u{1F512}", "second"] {
        assert!(write(&one, &held, text).await);
        assert_eq!(read(&other, &name).await.as_deref(), Some(text));
    }
    release(&one, &held).await;
    bounded(one.close()).await.unwrap();
    assert_eq!(read(&other, &name).await.as_deref(), Some("second"));
    let pttl = redis.cli(&["PTTL", &side(&name, "record")]).unwrap().number().unwrap();
    assert!((900_000..=1_000_000).contains(&pttl), "{pttl} ms");
    let error = bounded(one.records().unwrap().read(&name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let error = bounded(one.records().unwrap().write(&held, "late", KEEP)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_writer_is_refused() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let stale = acquire(&one, &name).await;
    assert!(write(&one, &stale, "mine").await);
    // As if it had expired.
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert!(!write(&one, &stale, "late").await, "nobody holds the lock");
    let newer = acquire(&other, &name).await;
    assert!(!write(&one, &stale, "late").await, "another holds the lock");
    assert_eq!(read(&other, &name).await.as_deref(), Some("mine"));
    assert!(write(&other, &newer, "theirs").await);
    assert_eq!(read(&one, &name).await.as_deref(), Some("theirs"));
    redis.cli(&["SET", name.as_str(), &format!("{}:7", newer.claim())]).unwrap();
    assert!(!write(&other, &newer, "late").await, "another token");
}

#[tokio::test(flavor = "multi_thread")]
async fn record_may_be_kept_for_ever() {
    let (session, name) = (session(shared(), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    for keep in [Duration::ZERO, Duration::MAX] {
        assert!(bounded(session.records().unwrap().write(&held, "x", keep)).await.unwrap(), "{keep:?}");
    }
    assert_eq!(read(&session, &name).await.as_deref(), Some("x"));
}

#[tokio::test(flavor = "multi_thread")]
async fn record_of_another_type_and_full_server_are_errors() {
    let redis = Redis::start().unwrap();
    let (session, name) = (session(&redis, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let record = side(&name, "record");
    redis.cli(&["RPUSH", &record, "junk"]).unwrap();
    let error = bounded(session.records().unwrap().read(&name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    redis.command(&[b"SET".as_slice(), record.as_bytes(), &[0xff]]).unwrap();
    let error = bounded(session.records().unwrap().read(&name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(write(&session, &held, "ours").await);
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let error = bounded(session.records().unwrap().write(&held, "more", KEEP)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(read(&session, &name).await.as_deref(), Some("ours"));
}
