//! Orderly shutdown: held locks are finished and new claims are refused. Also a shutdown that is not orderly.

use std::{
    pin::pin,
    sync::{Arc, Mutex, atomic::Ordering},
    thread::ThreadId,
    time::Duration,
};

use crate::cancel_safety::poll_once;
use crate::checked::Counted;
use crate::common::{HANG, NAME, TTL, client, eventually, in_time, kind, name, settle};
use crate::scripted::Scripted;
use lockkit_core::{Clock, ErrorKind, LockClient, Owner, Status, backend::Lifetime, memory::MemoryServer};
use tokio::time::{Instant, sleep};

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn draining_client_finishes_holds_and_refuses_new_claims() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let waiting = client.lock(NAME).unwrap();
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
    let work = TTL * 3;
    let start = Instant::now();
    let (drained, ()) = tokio::join!(client.drain(TTL * 10), async {
        settle().await;
        assert_eq!(kind(waiting.await.unwrap()), ErrorKind::Closed, "a waiting call returns at once");
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(kind(client.lock("new").unwrap().acquire().await), ErrorKind::Closed);
        assert_eq!(kind(client.lock("new").unwrap().try_acquire().await), ErrorKind::Closed);
        sleep(work).await;
        assert!(guard.is_held(), "renewed as long as it is needed");
        guard.release().await.unwrap();
    });
    drained.unwrap();
    assert!(start.elapsed() <= work + Duration::from_millis(10), "{:?}", start.elapsed());
    assert_eq!(client.status().current(), Status::Closed);
    assert_eq!(server.sessions(), 0);
    assert!(server.is_empty());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn draining_client_sends_no_further_claim() {
    let backend = Scripted::new(Lifetime::Session);
    backend.script.entries_vanish.store(true, Ordering::SeqCst);
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    // Its next claim follows a pause, because the entry of the first one has vanished.
    let waiting = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    let start = Instant::now();
    client.drain(TTL).await.unwrap();
    assert_eq!(kind(waiting.await.unwrap()), ErrorKind::Closed);
    assert_eq!(start.elapsed(), Duration::ZERO, "the pause ends at once");
    assert_eq!(backend.script.claims.load(Ordering::SeqCst), 1);
}

/// Work that holds a lock may re-enter it; it could not finish if that was refused.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn owner_re_enters_while_its_client_drains() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let lock = client.lock(NAME).unwrap().reentrant(&Owner::new());
    let outer = lock.acquire().await.unwrap();
    let (drained, ()) = tokio::join!(client.drain(TTL), async {
        settle().await;
        let inner = lock.acquire().await.unwrap();
        assert_eq!(inner.token(), outer.token());
        drop((outer, inner));
        settle().await;
        assert_eq!(kind(lock.acquire().await), ErrorKind::Closed, "no longer held: a new claim");
    });
    drained.unwrap();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_left_at_the_drain_limit_is_lost_and_reported() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let limit = TTL * 2;
    let start = Instant::now();
    let error = in_time(client.drain(limit)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().ends_with("after 12s: 1"), "{error}");
    assert!(start.elapsed() <= limit + Duration::from_millis(10), "{:?}", start.elapsed());
    assert!(!guard.is_held());
    assert!(server.is_empty());
}

/// As `LockGuard` documents: after the end of the runtime nothing is sent.
#[test]
fn guard_dropped_at_the_end_of_main_leaves_its_entry_unless_the_client_is_closed() {
    let _counted = Counted::begin();
    for closes in [false, true] {
        let server = MemoryServer::new();
        let main = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        main.block_on(async {
            let client = client(&server).await;
            let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
            drop(guard);
            if closes {
                client.close().await.unwrap();
            }
        });
        drop(main);
        assert_eq!(server.is_empty(), closes);
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holds_left_at_the_drain_limit_are_reported_although_the_close_fails() {
    let backend = Scripted::new(Lifetime::Hold);
    let client = backend.client().await;
    let _guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    backend.script.unclosable.store(1, Ordering::SeqCst);
    let error = in_time(client.drain(TTL / 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(format!("{error:#}").contains("close"), "{error:#}");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn drain_says_after_what_time_how_many_locks_were_left() {
    let client = client(&MemoryServer::new()).await;
    let [one, other] = ["one", "other"].map(|name| client.lock(name).unwrap());
    let _guards = (one.acquire().await.unwrap(), other.acquire().await.unwrap());
    client.lock(NAME).unwrap().acquire().await.unwrap().release().await.unwrap();
    let error = client.drain(TTL).await.unwrap_err().to_string();
    assert!(error.ends_with("locks that were still held after 6s: 2"), "{error}");
}

/// The holder releases, and its successor's client begins to drain before any task has run.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn grant_that_arrives_as_its_client_begins_to_drain_is_given_back() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.late.store(true, Ordering::SeqCst);
    let lock = client.lock(NAME).unwrap();
    let acquiring = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    script.grants.notify_one();
    client.drain(TTL).await.unwrap();
    assert_eq!(kind(acquiring.await.unwrap()), ErrorKind::Closed);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn closing_client_releases_its_locks_by_the_end_of_its_session() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let guards = [client.lock(NAME).unwrap().acquire().await, client.lock("other").unwrap().acquire().await];
    client.close().await.unwrap();
    assert!(guards.iter().flatten().all(|guard| !guard.is_held()));
    let (closed, tried) = (&backend.script.closed, &backend.script.releases_tried);
    assert_eq!((closed.load(Ordering::SeqCst), tried.load(Ordering::SeqCst)), (1, 0));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lock_whose_release_is_not_confirmed_is_not_held_at_the_drain_limit() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    backend.script.releases_refused.store(true, Ordering::SeqCst);
    drop(client.lock(NAME).unwrap().acquire().await.unwrap());
    let start = Instant::now();
    client.drain(TTL / 2).await.unwrap();
    assert!(start.elapsed() >= TTL / 2, "waited for the release");
}

/// The limit is beyond what the clock can show.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn drain_without_a_limit_waits_for_the_end_of_its_hold() {
    let client = client(&MemoryServer::new()).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let (drained, ()) = tokio::join!(client.drain(Duration::MAX), async {
        sleep(TTL * 2).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
    });
    drained.unwrap();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn drain_that_leaves_no_hold_returns_the_error_of_its_close() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    backend.script.unclosable.store(1, Ordering::SeqCst);
    assert_eq!(kind(client.drain(TTL).await), ErrorKind::Unavailable);
}

/// Its request is not sent yet when the client begins to close.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn closing_client_sends_the_release_of_a_dropped_guard() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    drop(client.lock(NAME).unwrap().acquire().await.unwrap());
    client.close().await.unwrap();
    assert_eq!(backend.script.releases.load(Ordering::SeqCst), 1);
}

/// What a thread runs within its reading of a clock with this number, counted from now.
type Interruption = Mutex<Option<(ThreadId, u32, Box<dyn FnOnce() + Send>)>>;

fn interrupted_clock() -> (Clock, Arc<Interruption>) {
    let (clock, interruption) = (Clock::boot(), Arc::new(Interruption::default()));
    let next = Arc::clone(&interruption);
    let interrupted = move || {
        let here = std::thread::current().id();
        let due = next.lock().unwrap().take_if(|(thread, readings, _)| {
            *readings -= u32::from(*thread == here);
            *readings == 0
        });
        if let Some((.., interrupt)) = due {
            interrupt();
        }
        clock.now()
    };
    (Clock::new(interrupted), interruption)
}

/// The keeper's thread ends the holds of the client after the caller's thread has checked that the client is open, and
/// before it adds the hold: within a reading of the clock in between, of which there are two.
#[tokio::test(crate = "crate::checked")]
async fn hold_that_is_added_while_its_client_closes_is_lost() {
    for reading in 1..=2 {
        let (clock, interruption) = interrupted_clock();
        let builder = LockClient::builder(MemoryServer::new().backend()).clock(clock);
        let client = builder.own_thread().build().await.unwrap();
        let neighbour = client.lock("neighbour").unwrap().acquire().await.unwrap();
        let lock = client.lock(NAME).unwrap();
        let close = move || {
            assert!(poll_once(pin!(client.close())).is_pending());
            let start = std::time::Instant::now();
            while neighbour.is_held() && start.elapsed() < HANG {
                std::thread::yield_now();
            }
        };
        *interruption.lock().unwrap() = Some((std::thread::current().id(), reading, Box::new(close)));
        let guard = lock.acquire().await.unwrap();
        assert!(interruption.lock().unwrap().is_none(), "the claim was answered by its caller");
        assert!(!guard.is_held(), "closed within reading {reading}");
    }
}

/// A backend may cut a request off before it reports the loss of its session.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn proclaim_that_the_end_of_its_session_cut_off_during_a_drain_is_lost() {
    let backend = Scripted::with_elections(Lifetime::Session);
    let client = backend.client().await;
    let leadership = client.election(NAME).unwrap().campaign("first").await.unwrap();
    *backend.script.proclaim_failure.lock().unwrap() = Some(ErrorKind::Closed);
    let draining = tokio::spawn(async move { client.drain(TTL).await });
    settle().await;
    let proclaiming = tokio::spawn(async move { kind(leadership.proclaim("next").await) });
    settle().await;
    assert!(backend.script.proclaims.load(Ordering::SeqCst) > 0, "it was cut off");
    backend.script.lose_session.notify_one();
    assert_eq!(in_time(proclaiming).await.unwrap(), ErrorKind::Lost);
    drop(in_time(draining).await);
}
