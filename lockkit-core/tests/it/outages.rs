//! What calls return while there is no session.

use std::sync::atomic::Ordering;

use lockkit_core::{ErrorKind, Status, backend::Lifetime, memory::MemoryServer};
use tokio::time::sleep;

use crate::{
    common::{NAME, TTL, client, in_time, kind, lock_of_new_client, settle},
    connecting::{Starting, builder},
    scripted::Scripted,
};

/// As after a change of the password.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn calls_say_why_there_is_no_session() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let starting = Starting::new(&server, |attempt| (attempt > 1).then_some(ErrorKind::Denied));
    let client = builder(starting.clone()).build().await.unwrap();
    let lock = client.lock(NAME).unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none(), "the store answers");
    server.expire_all();
    settle().await;
    let tried = in_time(lock.try_acquire()).await.unwrap_err();
    let waited = in_time(lock.acquire_timeout(TTL)).await.unwrap_err();
    let read = in_time(client.election(NAME).unwrap().leader()).await.unwrap_err();
    for error in [tried, waited, read] {
        assert_eq!((error.kind(), error.lock().map(AsRef::as_ref)), (ErrorKind::Denied, Some(NAME)));
        let text = format!("{error:#}");
        assert!(text.contains("no session could be opened") && text.contains("attempt "), "{text}");
    }
    assert!(starting.attempts() > 2, "it tries again");
    drop(holder);
}

/// A server that cannot be understood may be one behind a bad connection.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn store_that_is_not_understood_is_unavailable() {
    let server = MemoryServer::new();
    let starting = Starting::new(&server, |attempt| (attempt > 1).then_some(ErrorKind::InvalidConfig));
    let client = builder(starting).build().await.unwrap();
    server.expire_all();
    settle().await;
    assert_eq!(kind(in_time(client.lock(NAME).unwrap().try_acquire()).await), ErrorKind::Unavailable);
}

/// The store may have granted the lock to nobody since.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holder_of_an_earlier_session_is_not_reported() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let lock = lock_of_new_client(&server).await;
    let waiting = tokio::spawn(async move { lock.acquire_timeout(TTL * 3).await });
    settle().await;
    server.hold_requests();
    assert_eq!(kind(in_time(waiting).await.unwrap()), ErrorKind::Unavailable);
    drop(holder);
}

/// The new session is open, and has not been answered.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holder_of_an_earlier_session_is_not_reported_by_the_next_one() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let client = client(&server).await;
    let lock = client.lock(NAME).unwrap();
    let waiting = tokio::spawn(async move { lock.acquire_timeout(TTL * 2 / 3).await });
    // A session that was renewed is replaced at once; the next claim follows after a pause.
    sleep(TTL / 2).await;
    server.expire_all();
    settle().await;
    server.hold_requests();
    assert_eq!(kind(in_time(waiting).await.unwrap()), ErrorKind::Unavailable);
    assert_eq!(client.status().current(), Status::Connected);
    drop(holder);
}

/// Its end is found in the same step of the keeper, so that nobody saw it open.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn client_is_built_although_its_first_session_ends_at_once() {
    let backend = Scripted::new(Lifetime::Session);
    backend.script.flapping.store(true, Ordering::SeqCst);
    let client = in_time(builder(backend.clone()).build()).await.unwrap();
    backend.script.flapping.store(false, Ordering::SeqCst);
    assert!(in_time(client.lock(NAME).unwrap().acquire()).await.unwrap().is_held());
}
