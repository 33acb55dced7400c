//! What an error says in a log: which operation failed, and for which lock.

use std::{fmt::Debug, sync::atomic::Ordering};

use crate::common::{NAME, TTL, client, in_time, name, settle};
use crate::scripted::Scripted;
use lockkit_core::{
    Clock, Error, ErrorKind, LockClient,
    backend::Lifetime,
    limits::{HOLD_AT_LEAST_MAX, ONCE_PERIOD_MIN, RELEASE_ANSWER_MAX},
    memory::MemoryServer,
};

/// Checks what the error of a call for the lock [`NAME`] says.
fn assert_says<T: Debug>(outcome: Result<T, Error>, operation: &str, kind: ErrorKind) {
    let error = outcome.unwrap_err();
    assert_eq!((error.operation(), error.lock(), error.kind()), (operation, Some(&name()), kind), "{error}");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn call_to_a_silent_store_names_its_lock() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let (lock, election) = (client.lock(NAME).unwrap(), client.election(NAME).unwrap());
    let once = client.once_per(NAME, ONCE_PERIOD_MIN).unwrap();
    server.hold_requests();
    assert_says(lock.try_acquire().await, "acquire", ErrorKind::Unavailable);
    assert_says(lock.acquire_timeout(TTL).await, "acquire", ErrorKind::Unavailable);
    assert_says(election.leader().await, "read leader", ErrorKind::Unavailable);
    let begun = once.begin_timeout(TTL).await.unwrap_err();
    assert_eq!((begun.lock(), begun.kind()), (Some(&name()), ErrorKind::Unavailable), "{begun}");
    server.deliver_requests();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn call_of_a_closed_client_names_its_lock() {
    let client = client(&MemoryServer::new()).await;
    let (lock, election) = (client.lock(NAME).unwrap(), client.election(NAME).unwrap());
    let once = client.once_per(NAME, ONCE_PERIOD_MIN).unwrap();
    let leadership = election.campaign("me").await.unwrap();
    client.close().await.unwrap();
    assert_says(lock.acquire().await, "acquire", ErrorKind::Closed);
    assert_says(election.leader().await, "read leader", ErrorKind::Closed);
    assert_says(in_time(election.observe().next()).await.unwrap(), "observe", ErrorKind::Closed);
    assert_says(once.begin().await, "read record", ErrorKind::Closed);
    assert_says(leadership.check(), "hold", ErrorKind::Lost);
    assert_says(leadership.proclaim("next").await, "hold", ErrorKind::Lost);
    assert_says(leadership.resign().await, "hold", ErrorKind::Lost);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn claim_that_fails_names_its_lock() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    let too_long = lock.clone().hold_at_least(HOLD_AT_LEAST_MAX + TTL);
    assert_says(too_long.acquire().await, "acquire", ErrorKind::InvalidConfig);
    assert_says(lock.clone().hold_at_least(TTL).acquire().await, "hold at least", ErrorKind::Unsupported);
    assert_says(client.election(NAME), "elect", ErrorKind::Unsupported);
    assert_says(client.once_per(NAME, ONCE_PERIOD_MIN), "once per", ErrorKind::Unsupported);
    backend.script.claims_given_up.store(true, Ordering::SeqCst);
    assert_says(in_time(lock.acquire()).await, "acquire", ErrorKind::Unexpected);
    backend.script.acquire_panics.store(true, Ordering::SeqCst);
    assert_says(in_time(lock.acquire()).await, "acquire", ErrorKind::Unexpected);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_that_is_not_confirmed_names_its_lock() {
    let backend = Scripted::new(Lifetime::Session);
    let (client, script) = (backend.client().await, &backend.script);
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    script.releases_refused.store(true, Ordering::SeqCst);
    let releasing = tokio::spawn(guard.release());
    settle().await;
    script.lose_session.notify_one();
    assert_says(in_time(releasing).await.unwrap(), "release", ErrorKind::Unavailable);
    let guard = in_time(client.lock(NAME).unwrap().acquire()).await.unwrap();
    assert_says(in_time(guard.release()).await, "release", ErrorKind::Denied);

    // The caller returns long before the session ends.
    let builder = LockClient::builder(backend.clone()).ttl(RELEASE_ANSWER_MAX * 6).clock(Clock::tokio());
    let guard = builder.build().await.unwrap().lock(NAME).unwrap().acquire().await.unwrap();
    assert_says(in_time(guard.release()).await, "release", ErrorKind::Denied);
}
