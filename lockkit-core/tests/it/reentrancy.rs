//! Re-entry by explicit owner.

use std::{sync::atomic::Ordering, time::Duration};

use crate::common::{NAME, TTL, client, eventually, in_time, kind, lock_of_new_client, name, settle};
use crate::scripted::Scripted;
use lockkit_core::{ErrorKind, Owner, backend::Lifetime, limits::TRY_ANSWER_MAX, memory::MemoryServer};
use tokio::time::{Instant, sleep};

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn owner_shares_one_hold_and_three_guards_need_three_releases() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    let requests_of_first = {
        let before = server.requests();
        let first = lock.acquire().await.unwrap();
        (server.requests() - before, first)
    };
    let (requests, first) = requests_of_first;
    assert_eq!(requests, 1);
    let before = server.requests();
    let second = lock.try_acquire().await.unwrap().unwrap();
    let third = lock.acquire_timeout(TTL).await.unwrap().unwrap();
    assert_eq!(server.requests(), before, "re-entry does no I/O");
    assert_eq!((first.token(), first.token()), (second.token(), third.token()));
    first.release().await.unwrap();
    drop(second);
    settle().await;
    assert!(third.is_held());
    assert!(server.inspect(&name()).holder.is_some());
    third.release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn two_owners_of_one_client_exclude_each_other() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap();
    let one = lock.clone().reentrant(&Owner::new()).acquire().await.unwrap();
    assert!(lock.clone().reentrant(&Owner::new()).try_acquire().await.unwrap().is_none());
    assert!(lock.try_acquire().await.unwrap().is_none(), "a lock without owner is never re-entered");
    drop(one);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn an_owner_re_enters_one_name_only() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let owner = Owner::new();
    let one = client.lock("one").unwrap().reentrant(&owner).acquire().await.unwrap();
    let other = client.lock("other").unwrap().reentrant(&owner).acquire().await.unwrap();
    assert_ne!(one.token(), other.token());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn tasks_of_one_owner_that_wait_share_one_claim() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.unwrap() })
        })
        .collect();
    eventually(TTL, "they wait", || server.inspect(&name()).waiters.len() == 1).await;
    assert!(lock.try_acquire().await.unwrap().is_none(), "a try while an attempt is pending");
    assert!(
        lock.acquire_timeout(Duration::from_millis(50)).await.unwrap().is_none(),
        "each call has its own time limit"
    );
    tasks[0].abort();
    settle().await;
    assert_eq!(server.inspect(&name()).waiters.len(), 1, "the others still wait");
    drop(holder);
    let mut guards = Vec::new();
    for task in tasks.into_iter().skip(1) {
        guards.push(task.await.unwrap());
    }
    assert_eq!(guards[0].token(), guards[1].token());
    drop(guards);
    eventually(TTL, "released by the last", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn attempt_gives_up_when_its_last_caller_leaves() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.unwrap() })
        })
        .collect();
    eventually(TTL, "they wait", || server.inspect(&name()).waiters.len() == 1).await;
    for task in tasks {
        task.abort();
    }
    eventually(TTL, "no waiter is left", || server.inspect(&name()).waiters.is_empty()).await;
    assert!(holder.is_held());
}

/// The runtime of the test finds what stays in the table of owners.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn attempt_granted_after_its_caller_left_is_forgotten() {
    let backend = Scripted::new(Lifetime::Hold);
    let script = &backend.script;
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap().reentrant(&Owner::new());
    script.late.store(true, Ordering::SeqCst);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    acquiring.abort();
    settle().await;
    script.grants.notify_one();
    eventually(TTL, "released", || script.releases.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn waiting_call_does_not_share_a_busy_try_of_its_owner() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    let (trying, waiting) = (lock.clone(), lock.clone());
    let (tried, guard) = tokio::join!(trying.try_acquire(), async {
        let waiter = tokio::spawn(async move { waiting.acquire().await.unwrap() });
        eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
        drop(holder);
        waiter.await.unwrap()
    });
    assert!(tried.unwrap().is_none());
    assert!(guard.is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn acquire_that_overlaps_a_try_waits_through_the_outage() {
    let backend = Scripted::new(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap().reentrant(&Owner::new());
    backend.script.acquires_silent.store(true, Ordering::SeqCst);
    let (trying, waiting) = (lock.clone(), lock.clone());
    let tried = tokio::spawn(async move { trying.try_acquire().await });
    settle().await;
    assert!(!tried.is_finished(), "the try has been sent, and the other call overlaps with it");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    assert_eq!(kind(tried.await.unwrap()), ErrorKind::Unavailable);
    sleep(TTL).await;
    assert!(!waiting.is_finished(), "the store has answered nothing");
    backend.script.acquires_silent.store(false, Ordering::SeqCst);
    assert!(in_time(waiting).await.unwrap().unwrap().is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn try_during_its_owners_attempt_fails_while_the_server_is_silent() {
    for contended_before in [false, true] {
        let server = MemoryServer::new();
        let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
        let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
        let waiting = lock.clone();
        let start_waiting = || tokio::spawn(async move { waiting.acquire().await });
        let waiting = if contended_before {
            let waiting = start_waiting();
            eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
            assert!(lock.try_acquire().await.unwrap().is_none(), "the server reports busy");
            server.hold_requests();
            waiting
        } else {
            server.hold_requests();
            start_waiting()
        };
        settle().await;
        let start = Instant::now();
        assert_eq!(
            kind(lock.try_acquire().await),
            ErrorKind::Unavailable,
            "the server has not reported busy"
        );
        assert!(start.elapsed() <= TRY_ANSWER_MAX + Duration::from_millis(10));
        waiting.abort();
        drop(holder);
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn granted_try_is_shared_with_waiting_calls_of_its_owner() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    server.hold_requests();
    let (trying, waiting) = (lock.clone(), lock.clone());
    let tried = tokio::spawn(async move { trying.try_acquire().await });
    settle().await;
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    settle().await;
    assert_eq!(server.held_requests(), 2, "each has asked the server");
    server.deliver_requests();
    let (tried, waited) = (tried.await.unwrap().unwrap().unwrap(), in_time(waiting).await.unwrap().unwrap());
    assert_eq!(tried.token(), waited.token(), "one hold");
    eventually(TTL, "no call waits behind its own owner", || server.inspect(&name()).waiters.is_empty())
        .await;
    tried.release().await.unwrap();
    assert!(waited.is_held());
    waited.release().await.unwrap();
    assert!(server.is_empty());
}

/// The store answers the second one as busy: its own owner holds the lock.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn overlapping_tries_of_one_owner_share_the_hold() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    server.hold_requests();
    let trying =
        [lock.clone(), lock.clone()].map(|lock| tokio::spawn(async move { lock.try_acquire().await }));
    settle().await;
    assert_eq!(server.held_requests(), 2, "each has asked the server");
    server.deliver_requests();
    let mut guards = Vec::new();
    for trying in trying {
        guards.push(trying.await.unwrap().unwrap().expect("its owner holds the lock"));
    }
    assert_eq!(guards[0].token(), guards[1].token(), "one hold");
    guards.pop();
    assert!(guards[0].is_held());
    drop(guards);
    eventually(TTL, "released by the last", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_being_released_is_not_re_entered() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    let first = lock.acquire().await.unwrap();
    let token = first.token();
    drop(first);
    let second = lock.acquire().await.unwrap();
    assert!(second.token() > token, "a new claim, a new token");
    settle().await;
    assert!(second.is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_lost_hold_is_lost_for_all_guards_and_not_re_entered() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    server.expire_all();
    inner.lost().await;
    assert!(!outer.is_held());
    assert_eq!(kind(outer.release().await), ErrorKind::Lost);
    let again = lock.acquire().await.unwrap();
    assert!(again.token() > inner.token());
    drop(inner);
    settle().await;
    assert!(again.is_held(), "the old guards do not count in the new hold");
    // Past the deadline, and no task has noticed it yet.
    tokio::time::advance(TTL).await;
    let third = lock.acquire().await.unwrap();
    assert!(third.is_held());
    assert!(third.token() > again.token());
}

/// On an ordinary runtime: the guards that it leaks are users of the keeper.
#[tokio::test(start_paused = true)]
async fn too_many_guards_of_one_owner_are_an_error() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    let first = lock.acquire().await.unwrap();
    let mut count = 1_u32;
    // Leaked on purpose: a million guards would fill the test's memory, and only their count matters.
    let error = loop {
        match lock.acquire().await {
            Ok(guard) => std::mem::forget(guard),
            Err(error) => break error,
        }
        count += 1;
    };
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    assert_eq!(count, lockkit_core::limits::REENTRIES_PER_HOLD_MAX);
    assert!(first.is_held());
}
