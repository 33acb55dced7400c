//! What a memory server answers to a session, where no client shows it.

use std::{sync::Arc, time::Duration};

use crate::common::{NAME, TTL, name, settle};
use lockkit_core::{
    Clock, LockName, Metadata, Proposal,
    backend::{Acquired, Backend as _, Claim, ClaimControl, Grant, Renewal, Session},
    memory::MemoryServer,
};
use tokio::time::{Instant, sleep};

pub(crate) async fn session(server: &MemoryServer) -> Arc<dyn Session> {
    server.backend().open_session(TTL, Clock::tokio()).await.unwrap()
}

fn claim(name: &str, wait: bool) -> Claim {
    let name = LockName::new(name).unwrap();
    Claim::new(name, wait, Metadata::of_this_process(None), &ClaimControl::new())
}

pub(crate) async fn granted(session: &dyn Session, name: &str) -> Grant {
    let granted = match session.acquire(claim(name, false)).await.unwrap() {
        Acquired::Granted(grant) => Some(grant),
        _ => None,
    };
    granted.expect("granted")
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holder_that_left_a_pinned_entry_holds_nothing() {
    let server = MemoryServer::new();
    let session = session(&server).await;
    let grant = granted(&*session, NAME).await;
    let (pins, records, elections) =
        (session.pins().unwrap(), session.records().unwrap(), session.elections().unwrap());
    assert!(pins.pin(&grant, TTL * 2).await.unwrap());
    pins.leave(&grant).await.unwrap();
    let renewals = session.renew(std::slice::from_ref(&grant)).await;
    assert!(matches!(renewals.session, Renewal::Renewed { .. }));
    assert!(matches!(renewals.holds[..], [(_, Renewal::Gone)]), "{:?}", renewals.holds);
    assert!(!pins.pin(&grant, TTL * 9).await.unwrap());
    assert!(!records.write(&grant, "late", TTL).await.unwrap());
    assert!(!elections.proclaim(&grant, grant.metadata()).await.unwrap());
    sleep(TTL * 2 - Duration::from_millis(1)).await;
    assert!(server.inspect(&name()).holder.is_some(), "until the end of the pin");
    sleep(Duration::from_millis(1)).await;
    assert!(server.is_empty());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holder_that_leaves_an_entry_without_a_pin_frees_its_lock() {
    let server = MemoryServer::new();
    let session = session(&server).await;
    let grant = granted(&*session, NAME).await;
    session.pins().unwrap().leave(&grant).await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn entry_whose_pin_is_over_frees_its_lock_at_once() {
    for end in ["leave", "close", "expiry"] {
        let server = MemoryServer::new();
        let (holder, other) = (session(&server).await, session(&server).await);
        let grant = granted(&*holder, NAME).await;
        assert!(holder.pins().unwrap().pin(&grant, TTL / 10).await.unwrap());
        let waiting = tokio::spawn(async move { other.acquire(claim(NAME, true)).await.unwrap() });
        sleep(TTL / 5).await;
        assert_eq!(server.inspect(&name()).waiters.len(), 1);
        let start = Instant::now();
        match end {
            "leave" => holder.pins().unwrap().leave(&grant).await.unwrap(),
            "close" => holder.close().await.unwrap(),
            _ => assert!(server.expire_holder(&name())),
        }
        assert!(matches!(waiting.await.unwrap(), Acquired::Granted(_)), "{end}");
        assert_eq!(start.elapsed(), Duration::ZERO, "{end}");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn proclaim_with_an_older_number_changes_nothing() {
    let server = MemoryServer::new();
    let session = session(&server).await;
    let (grant, elections) = (granted(&*session, NAME).await, session.elections().unwrap());
    for (value, number) in [("new", 2), ("old", 1)] {
        let metadata = grant.metadata().clone().with_proposal(Proposal::new(value, number));
        assert!(elections.proclaim(&grant, &metadata).await.unwrap(), "it leads");
        assert_eq!(elections.leader(&name()).await.unwrap().unwrap().proposal.value, "new");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn records_are_dropped_after_their_time() {
    let server = MemoryServer::new();
    let session = session(&server).await;
    let records = session.records().unwrap();
    let [short, long, last] = [
        granted(&*session, "short").await,
        granted(&*session, "long").await,
        granted(&*session, "last").await,
    ];
    assert!(records.write(&short, "record of a second", Duration::from_secs(1)).await.unwrap());
    assert!(records.write(&long, "record of a minute", Duration::from_secs(60)).await.unwrap());
    let is_kept = |record: &str| format!("{server:?}").contains(record);
    assert!(is_kept("record of a second"));
    sleep(Duration::from_secs(1)).await;
    assert!(records.write(&last, "the last record", TTL).await.unwrap());
    assert!(!is_kept("record of a second") && is_kept("record of a minute") && is_kept("the last record"));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_expires_exactly_after_its_ttl() {
    let server = MemoryServer::new();
    let _session = session(&server).await;
    sleep(TTL - Duration::from_millis(1)).await;
    assert_eq!(server.sessions(), 1);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(server.sessions(), 0);
}

/// Nobody has looked at the server since its expiry.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn late_heartbeat_revives_no_session_that_has_expired() {
    let server = MemoryServer::new();
    let session = session(&server).await;
    let grant = granted(&*session, NAME).await;
    sleep(TTL).await;
    let renewals = session.renew(std::slice::from_ref(&grant)).await;
    assert!(matches!(renewals.session, Renewal::Gone), "{:?}", renewals.session);
    assert!(matches!(renewals.holds[..], [(_, Renewal::Gone)]), "{:?}", renewals.holds);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn grant_counts_from_the_sending_of_the_last_heartbeat() {
    let (server, clock) = (MemoryServer::new(), Clock::tokio());
    let session = server.backend().open_session(TTL, clock.clone()).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    let sent = clock.now();
    server.hold_requests();
    let (renewals, ()) = tokio::join!(session.renew(&[]), async {
        sleep(Duration::from_millis(100)).await;
        server.deliver_requests();
    });
    assert!(matches!(renewals.session, Renewal::Renewed { armed_at } if armed_at == sent));
    assert_eq!(granted(&*session, NAME).await.armed_at(), sent);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn waiter_whose_session_ends_is_answered_at_once() {
    let server = MemoryServer::new();
    let (holder, other) = (session(&server).await, session(&server).await);
    let _held = granted(&*holder, NAME).await;
    let waiting = tokio::spawn(async move { other.acquire(claim(NAME, true)).await.unwrap() });
    settle().await;
    let start = Instant::now();
    assert!(server.expire_waiter(&name()));
    assert!(matches!(waiting.await.unwrap(), Acquired::EntryGone));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Without an answer it is unknown whether the entry is gone.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn withdrawal_whose_reply_is_lost_is_repeated() {
    let server = MemoryServer::new();
    let (holder, other) = (session(&server).await, session(&server).await);
    let _held = granted(&*holder, NAME).await;
    let control = ClaimControl::new();
    let claim = Claim::new(name(), true, Metadata::of_this_process(None), &control);
    let waiting = tokio::spawn(async move { other.acquire(claim).await.unwrap() });
    settle().await;
    let before = server.requests();
    server.lose_replies(1);
    control.give_up();
    assert!(matches!(waiting.await.unwrap(), Acquired::GaveUp));
    assert_eq!(server.requests() - before, 2);
    assert!(server.inspect(&name()).waiters.is_empty());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn inspection_shows_how_long_a_pinned_entry_stays() {
    for (at_least, while_held, once_left) in [(TTL / 2, TTL, TTL / 2), (TTL * 2, TTL * 2, TTL * 2)] {
        let server = MemoryServer::new();
        let session = session(&server).await;
        let grant = granted(&*session, NAME).await;
        let remaining = || server.inspect(&name()).holder.and_then(|holder| holder.remaining);
        assert_eq!(remaining(), Some(TTL), "with its session");
        assert!(session.pins().unwrap().pin(&grant, at_least).await.unwrap());
        assert_eq!(remaining(), Some(while_held), "with its session or its pin");
        session.pins().unwrap().leave(&grant).await.unwrap();
        assert_eq!(remaining(), Some(once_left), "with its pin");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn waiter_behind_a_session_that_expires_is_granted_the_lock_at_once() {
    let server = MemoryServer::new();
    let (start, holder) = (Instant::now(), session(&server).await);
    let _held = granted(&*holder, NAME).await;
    // Its re-checks come before and after the expiry.
    sleep(TTL / 2).await;
    let other = session(&server).await;
    let acquired = other.acquire(claim(NAME, true)).await.unwrap();
    assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
    assert!(start.elapsed() <= TTL + Duration::from_millis(10), "{:?}", start.elapsed());
}
