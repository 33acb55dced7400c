//! Breaking a hold from outside: who learns of it when, and whom it touches.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Error, ErrorKind, LockClient, LockName, Result,
    backend::{Admin, Backend, BackendInfo, Contender, Inspection, Lifetime, Session},
    memory::{MemoryBackend, MemoryServer},
};
use tokio::time::Instant;

use crate::{
    common::{NAME, TTL, client, eventually, in_time, kind, lock_of_new_client, name, settle},
    scripted::Scripted,
};

/// The heartbeat of a memory client, with what timers on a paused clock may add.
const HEARTBEAT: Duration = Duration::from_millis(2_010);

/// Returns the holder of the lock as an operator is shown it.
async fn holder(operator: &LockClient) -> Contender {
    operator.inspect(NAME).await.unwrap().holder.unwrap()
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn broken_holder_learns_of_it_at_once_and_the_next_waiter_is_granted() {
    let server = MemoryServer::new();
    let (operator, holding) = (client(&server).await, client(&server).await);
    let guard = holding.lock(NAME).unwrap().acquire().await.unwrap();
    let other = holding.lock("another lock").unwrap().acquire().await.unwrap();
    let waiting = lock_of_new_client(&server).await;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
    let start = Instant::now();
    assert!(operator.break_lock(NAME, &holder(&operator).await).await.unwrap());
    let lost = in_time(guard.lost()).await;
    let next = in_time(waiter).await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "nobody waited for a heartbeat or a re-check");
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(lost.to_string().contains("the server reported that the entry is gone"), "{lost}");
    assert!(next.token() > guard.token());
    assert_eq!(kind(guard.release().await), ErrorKind::Lost);
    tokio::time::sleep(TTL * 2).await;
    assert!(next.is_held() && other.is_held(), "neither the next holder nor another lock is touched");
    drop((next, other));
    eventually(TTL, "nothing is left", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn stale_contender_breaks_nobody() {
    let server = MemoryServer::new();
    let (operator, lock) = (client(&server).await, lock_of_new_client(&server).await);
    let former = lock.acquire().await.unwrap();
    let stale = holder(&operator).await;
    former.release().await.unwrap();
    assert!(!operator.break_lock(NAME, &stale).await.unwrap(), "nobody holds the lock");
    let guard = lock.acquire().await.unwrap();
    let waiting = lock_of_new_client(&server).await;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
    let mut of_another_grant = holder(&operator).await;
    of_another_grant.token = stale.token;
    let waits = operator.inspect(NAME).await.unwrap().waiters.remove(0);
    for contender in [&stale, &of_another_grant, &waits] {
        assert!(!operator.break_lock(NAME, contender).await.unwrap(), "{contender:?}");
    }
    assert!(!operator.break_lock("another lock", &holder(&operator).await).await.unwrap());
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.is_held() && !waiter.is_finished());
    assert_eq!(kind(operator.break_lock("", &stale).await), ErrorKind::InvalidName);
    guard.release().await.unwrap();
    drop(in_time(waiter).await.unwrap().unwrap());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn broken_holder_that_no_notification_reaches_learns_of_it_by_its_heartbeat() {
    let server = MemoryServer::new();
    let (operator, guard) =
        (client(&server).await, lock_of_new_client(&server).await.acquire().await.unwrap());
    server.drop_notifications(true);
    let start = Instant::now();
    assert!(operator.break_lock(NAME, &holder(&operator).await).await.unwrap());
    settle().await;
    assert!(guard.is_held(), "nothing has reported it");
    in_time(guard.lost()).await;
    assert!(start.elapsed() <= HEARTBEAT, "{:?}", start.elapsed());
}

/// What becomes of a break whose caller leaves later is tested in `audit.rs`.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn break_that_was_never_polled_sends_nothing() {
    let server = MemoryServer::new();
    let (operator, guard) =
        (client(&server).await, lock_of_new_client(&server).await.acquire().await.unwrap());
    let shown = holder(&operator).await;
    let before = server.requests();
    drop(operator.break_lock(NAME, &shown));
    settle().await;
    assert_eq!(server.requests(), before);
    assert!(guard.is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn break_whose_reply_is_lost_is_repeated_without_touching_the_next_holder() {
    let server = MemoryServer::new();
    let (operator, guard) =
        (client(&server).await, lock_of_new_client(&server).await.acquire().await.unwrap());
    let waiting = lock_of_new_client(&server).await;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
    let shown = holder(&operator).await;
    server.lose_replies(1);
    let error = operator.break_lock(NAME, &shown).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name())));
    let next = in_time(waiter).await.unwrap().unwrap();
    assert!(!operator.break_lock(NAME, &shown).await.unwrap(), "it was broken by the first request");
    tokio::time::sleep(TTL).await;
    assert!(next.is_held() && !guard.is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn entry_that_only_its_pin_keeps_is_shown_and_broken() {
    let server = MemoryServer::new();
    let (operator, lock) = (client(&server).await, lock_of_new_client(&server).await);
    let pinned = lock.clone().hold_at_least(TTL * 100).acquire().await.unwrap();
    pinned.release().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none(), "the pin keeps it");
    let shown = holder(&operator).await;
    assert_eq!(shown.remaining, Some(TTL * 100));
    assert!(operator.break_lock(NAME, &shown).await.unwrap());
    assert!(lock.try_acquire().await.unwrap().is_some());
}

/// A memory server that can be inspected, and nothing more.
#[derive(Debug)]
struct InspectOnly(MemoryBackend);

#[async_trait]
impl Backend for InspectOnly {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        self.0.open_session(ttl, clock).await
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

#[async_trait]
impl Admin for InspectOnly {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.0.inspect(name).await
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn backend_without_these_powers_refuses() {
    let holder = Contender::new("entry", None, None);
    let none = Scripted::new(Lifetime::Session).client().await;
    let unsupported = |error: Error| {
        assert_eq!((error.kind(), error.lock().unwrap().as_str()), (ErrorKind::Unsupported, NAME), "{error}");
    };
    unsupported(none.inspect(NAME).await.unwrap_err());
    let inspect_only = InspectOnly(MemoryServer::new().backend());
    let inspected = LockClient::builder(inspect_only).ttl(TTL).clock(Clock::tokio()).build().await.unwrap();
    assert!(inspected.inspect(NAME).await.unwrap().holder.is_none());
    for client in [none, inspected] {
        unsupported(client.break_lock(NAME, &holder).await.unwrap_err());
        assert_eq!(kind(client.list("").next_page().await), ErrorKind::Unsupported);
    }
}
