//! Elections: who leads, what it proposes, and what observers see, on a paused clock.

use std::{pin::pin, sync::atomic::Ordering, time::Duration};

use crate::cancel_safety::poll_once;
use crate::checked::Counted;
use crate::common::{NAME, TTL, client, deliver_next, eventually, in_time, kind, name, settle, tasks};
use crate::scripted::Scripted;
use lockkit_core::{
    ErrorKind, Leader, LockClient, Observer,
    backend::Lifetime,
    limits::{
        OBSERVED_CHANGES_MAX, PROCLAIMS_WAITING_MAX, PROPOSAL_BYTES_MAX, RECHECK_PAUSE_MAX, RETRY_PAUSE_MAX,
        RETRY_PAUSE_MIN,
    },
    memory::MemoryServer,
};
use tokio::time::{Instant, sleep, timeout};

async fn next(observer: &mut Observer) -> Option<Leader> {
    in_time(observer.next()).await.unwrap().unwrap()
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn candidates_lead_one_after_another_and_observers_see_each() {
    let server = MemoryServer::new();
    let (one, other) = (client(&server).await, client(&server).await);
    let watching = client(&server).await.election(NAME).unwrap();
    let mut observer = watching.observe();
    assert_eq!(next(&mut observer).await, None, "the current state comes first");
    let first = one.election(NAME).unwrap().campaign("one").await.unwrap();
    let seen = next(&mut observer).await.unwrap();
    assert_eq!((&*seen.value, seen.token), ("one", first.token()));
    assert!(seen.since.is_some());
    let second = tokio::spawn({
        let election = other.election(NAME).unwrap();
        async move { election.campaign("other").await.unwrap() }
    });
    eventually(TTL, "it campaigns", || server.inspect(&name()).waiters.len() == 1).await;
    first.proclaim("one, moved").await.unwrap();
    let moved = next(&mut observer).await.unwrap();
    assert_eq!((&*moved.value, moved.token, moved.since), ("one, moved", seen.token, seen.since));
    assert_eq!(watching.leader().await.unwrap(), Some(moved));
    let start = Instant::now();
    first.resign().await.unwrap();
    let second = in_time(second).await.unwrap();
    let seen = next(&mut observer).await.unwrap();
    assert_eq!((&*seen.value, seen.token), ("other", second.token()));
    assert_eq!(start.elapsed(), Duration::ZERO, "the watch reports it");
    drop(second);
    assert_eq!(next(&mut observer).await, None);
    assert_eq!(start.elapsed(), Duration::ZERO, "also of an end without a successor");
    assert_eq!(watching.leader().await.unwrap(), None);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_leader_that_lost_proclaims_nothing() {
    let server = MemoryServer::new();
    let election = client(&server).await.election(NAME).unwrap();
    let leadership = election.campaign("first").await.unwrap();
    let other = client(&server).await.election(NAME).unwrap();
    // The entry alone is gone: neither the session nor a heartbeat has reported it to the leader.
    server.delete_entries(&name());
    let next = other.campaign("second").await.unwrap();
    assert!(leadership.is_leader(), "it does not know yet");
    assert_eq!(kind(leadership.proclaim("late").await), ErrorKind::Lost);
    assert!(!leadership.is_leader(), "now it knows, before the next heartbeat");
    assert_eq!(other.leader().await.unwrap().unwrap().value, "second");
    drop(next);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn proclaims_take_effect_in_the_order_of_the_calls() {
    let server = MemoryServer::new();
    let election = client(&server).await.election(NAME).unwrap();
    let leadership = election.campaign("0").await.unwrap();
    server.hold_requests();
    let ((), second, last) = tokio::join!(
        async {
            // Dropped: it is proclaimed all the same.
            let call = leadership.proclaim("1");
            tokio::time::timeout(Duration::from_millis(1), call).await.unwrap_err();
        },
        async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            leadership.proclaim("2").await
        },
        async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            server.deliver_requests();
            server.lose_replies(1);
            leadership.proclaim("3").await
        },
    );
    second.unwrap();
    last.unwrap();
    settle().await;
    assert_eq!(election.leader().await.unwrap().unwrap().value, "3");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn recheck_finds_changes_without_notifications() {
    let server = MemoryServer::new();
    let election = client(&server).await.election(NAME).unwrap();
    let mut observer = election.observe();
    assert_eq!(next(&mut observer).await, None);
    server.drop_notifications(true);
    let start = Instant::now();
    let leadership = client(&server).await.election(NAME).unwrap().campaign("silent").await.unwrap();
    assert_eq!(next(&mut observer).await.unwrap().value, "silent");
    let waited = start.elapsed();
    assert!(waited > Duration::ZERO && waited <= RECHECK_PAUSE_MAX, "{waited:?}");
    drop(leadership);
}

/// A change between the two would be found by the re-check only.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn observer_watches_before_it_reads() {
    let server = MemoryServer::new();
    let (watching, leading) = (client(&server).await, client(&server).await);
    let election = leading.election(NAME).unwrap();
    server.hold_requests();
    let mut observer = watching.election(NAME).unwrap().observe();
    deliver_next(&server).await;
    // The second request of the observer is sent after this one.
    let mut campaign = pin!(election.campaign("new"));
    assert!(poll_once(campaign.as_mut()).is_pending());
    settle().await;
    assert_eq!(server.held_requests(), 2);
    let start = Instant::now();
    server.deliver_requests();
    let leadership = in_time(campaign).await.unwrap();
    while next(&mut observer).await.is_none() {}
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(leadership);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn changes_wait_for_a_slow_observer() {
    let server = MemoryServer::new();
    let leadership = client(&server).await.election(NAME).unwrap().campaign("0").await.unwrap();
    let mut observer = client(&server).await.election(NAME).unwrap().observe();
    settle().await;
    for value in 1..OBSERVED_CHANGES_MAX {
        leadership.proclaim(value.to_string()).await.unwrap();
        settle().await;
    }
    for value in 0..OBSERVED_CHANGES_MAX {
        assert_eq!(next(&mut observer).await.unwrap().value, value.to_string());
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn observers_continue_through_lost_sessions_and_end_with_the_client() {
    let server = MemoryServer::new();
    let watching = client(&server).await;
    let mut observer = watching.election(NAME).unwrap().observe();
    assert_eq!(next(&mut observer).await, None);
    for value in ["one", "two"] {
        server.expire_all();
        let leader = client(&server).await;
        let leadership = leader.election(NAME).unwrap().campaign(value).await.unwrap();
        while next(&mut observer).await.is_none_or(|leader| leader.value != value) {}
        drop(leadership);
        leader.close().await.unwrap();
    }
    watching.close().await.unwrap();
    let start = Instant::now();
    let end = loop {
        match in_time(observer.next()).await.unwrap() {
            Ok(_) => {}
            Err(end) => break end,
        }
    };
    assert_eq!((end.kind(), start.elapsed()), (ErrorKind::Closed, Duration::ZERO));
    assert!(in_time(observer.next()).await.is_none(), "an error is the last item");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_read_that_the_end_of_its_session_cut_off_may_be_repeated() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let election = client.election(NAME).unwrap();
    server.hold_requests();
    let reading = tokio::spawn(async move { election.leader().await });
    settle().await;
    server.expire_all();
    let answer = in_time(reading).await.unwrap();
    // Another session follows: the client is not closed.
    assert_eq!(kind(answer), ErrorKind::Unavailable);
    server.deliver_requests();
}

#[tokio::test(crate = "crate::checked")]
async fn observer_of_an_own_thread_client_learns_of_the_end() {
    let server = MemoryServer::new();
    let client = LockClient::builder(server.backend()).own_thread().build().await.unwrap();
    let mut observer = client.election(NAME).unwrap().observe();
    assert_eq!(next(&mut observer).await, None);
    client.close().await.unwrap();
    let end = in_time(observer.next()).await.unwrap();
    assert_eq!(kind(end), ErrorKind::Closed);
    assert!(in_time(observer.next()).await.is_none());
}

/// Its task is dropped with that runtime, before it can report anything.
#[test]
fn an_observation_ends_with_an_error_when_the_runtime_of_its_client_ends() {
    let _counted = Counted::begin();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = MemoryServer::new();
    let of_client = runtime();
    let mut observer = of_client.block_on(async {
        let mut observer = client(&server).await.election(NAME).unwrap().observe();
        assert_eq!(next(&mut observer).await, None);
        observer
    });
    drop(of_client);
    runtime().block_on(async {
        assert_eq!(kind(in_time(observer.next()).await.unwrap()), ErrorKind::Closed);
        assert!(in_time(observer.next()).await.is_none());
    });
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_campaign_without_patience_is_one_request() {
    let server = MemoryServer::new();
    let election = client(&server).await.election(NAME).unwrap();
    let leadership = election.campaign_timeout("at once", Duration::ZERO).await.unwrap().unwrap();
    let requests = server.requests();
    let other = client(&server).await.election(NAME).unwrap();
    assert!(other.campaign_timeout("too late", Duration::ZERO).await.unwrap().is_none());
    assert_eq!(server.requests() - requests, 2, "the session and the try");
    drop(leadership);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn nothing_is_proclaimed_after_the_resignation() {
    let server = MemoryServer::new();
    let election = client(&server).await.election(NAME).unwrap();
    let leadership = election.campaign("first").await.unwrap();
    server.hold_requests();
    for number in 0..10 {
        let call = leadership.proclaim(number.to_string());
        tokio::time::timeout(Duration::from_millis(1), call).await.unwrap_err();
    }
    let requests = server.requests();
    let resigning = tokio::spawn(leadership.resign());
    settle().await;
    server.deliver_requests();
    in_time(resigning).await.unwrap().unwrap();
    settle().await;
    assert_eq!(server.requests() - requests, 2, "the proclaim that was under way, and the release");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn proclaims_that_wait_for_a_silent_store_are_bounded() {
    let server = MemoryServer::new();
    let leadership = client(&server).await.election(NAME).unwrap().campaign("0").await.unwrap();
    server.hold_requests();
    for number in 0..PROCLAIMS_WAITING_MAX {
        let call = leadership.proclaim(number.to_string());
        timeout(Duration::from_millis(1), call).await.unwrap_err();
    }
    let refused = timeout(Duration::from_millis(1), leadership.proclaim("last")).await;
    assert_eq!(kind(refused.expect("at once")), ErrorKind::Unavailable);
    server.deliver_requests();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_dropped_observer_leaves_no_task() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    settle().await;
    let before = tasks();
    let observers: Vec<_> = (0..5).map(|_| client.election(NAME).unwrap().observe()).collect();
    eventually(TTL, "they observe", || tasks() == before + 5).await;
    drop(observers);
    eventually(TTL, "their tasks end", || tasks() == before).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_holder_without_a_value_is_a_leader_without_one() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let leader = client.election(NAME).unwrap().leader().await.unwrap().unwrap();
    assert_eq!((&*leader.value, leader.token), ("", guard.token()));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_value_that_is_too_long_is_refused() {
    let server = MemoryServer::new();
    let election = client(&server).await.election(NAME).unwrap();
    let long = "x".repeat(PROPOSAL_BYTES_MAX + 1);
    let refused = election.campaign(long.clone()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.operation()), (ErrorKind::InvalidConfig, "campaign"));
    assert!(server.is_empty());
    let leadership = election.campaign("\u{1}".repeat(PROPOSAL_BYTES_MAX)).await.unwrap();
    let refused = leadership.proclaim(long).await.unwrap_err();
    assert_eq!((refused.kind(), refused.operation()), (ErrorKind::InvalidConfig, "proclaim"));
    assert!(leadership.is_leader());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn observer_that_reported_a_change_begins_its_pauses_again() {
    let server = MemoryServer::new();
    let watching = client(&server).await;
    let mut observer = watching.election(NAME).unwrap().observe();
    assert_eq!(next(&mut observer).await, None);
    let lose_session = async || {
        // After a heartbeat: the next session is opened without a pause.
        sleep(TTL / 2).await;
        server.expire_all();
    };
    for _ in 0..8 {
        lose_session().await;
        sleep(RETRY_PAUSE_MAX).await;
    }
    let election = client(&server).await.election(NAME).unwrap();
    let leadership = election.campaign("reported").await.unwrap();
    assert_eq!(next(&mut observer).await.unwrap().value, "reported");
    leadership.resign().await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    lose_session().await;
    settle().await;
    let start = Instant::now();
    let leadership = client(&server).await.election(NAME).unwrap().campaign("next").await.unwrap();
    assert_eq!(next(&mut observer).await.unwrap().value, "next");
    assert!(start.elapsed() <= RETRY_PAUSE_MIN * 3, "{:?}", start.elapsed());
    drop(leadership);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn read_that_the_close_of_its_client_cut_off_is_closed() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let election = client.election(NAME).unwrap();
    server.hold_requests();
    let reading = tokio::spawn(async move { election.leader().await });
    settle().await;
    let (closed, answer) = tokio::join!(client.close(), in_time(reading));
    assert_eq!((kind(closed), kind(answer.unwrap())), (ErrorKind::Unavailable, ErrorKind::Closed));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn proclaim_that_pauses_before_its_next_request_ends_with_its_leadership() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let leadership = client.election(NAME).unwrap().campaign("first").await.unwrap();
    server.lose_replies(usize::MAX);
    let proclaiming = tokio::spawn(async move { (kind(leadership.proclaim("next").await), Instant::now()) });
    // The pauses last a second then.
    sleep(TTL / 2).await;
    let start = Instant::now();
    let (_, proclaimed) = tokio::join!(client.close(), in_time(proclaiming));
    assert_eq!(proclaimed.unwrap(), (ErrorKind::Lost, start));
}

/// A backend may cut a request off before it reports the loss of its session.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn proclaim_that_the_end_of_its_session_cut_off_is_lost() {
    let backend = Scripted::with_elections(Lifetime::Session);
    let client = backend.client().await;
    let leadership = client.election(NAME).unwrap().campaign("first").await.unwrap();
    let script = &backend.script;
    *script.proclaim_failure.lock().unwrap() = Some(ErrorKind::Closed);
    let proclaiming = tokio::spawn(async move { kind(leadership.proclaim("next").await) });
    sleep(RETRY_PAUSE_MIN * 4).await;
    let sent = script.proclaims.load(Ordering::SeqCst);
    assert!((1..10).contains(&sent), "{sent} in four of the shortest pauses");
    script.lose_session.notify_one();
    assert_eq!(in_time(proclaiming).await.unwrap(), ErrorKind::Lost);
}

/// The worker of this runtime polls the task first that was spawned last.
#[tokio::test(crate = "crate::checked", flavor = "multi_thread", worker_threads = 1)]
async fn value_that_follows_a_newer_one_is_not_sent() {
    let of_worker = tokio::spawn(async {
        let server = MemoryServer::new();
        let builder = LockClient::builder(server.backend()).ttl(TTL * 100);
        let leadership = builder.build().await.unwrap().election(NAME).unwrap().campaign("0").await.unwrap();
        let requests = server.requests();
        let mut proclaims = ["1", "2"].map(|value| Box::pin(leadership.proclaim(value)));
        for proclaim in &mut proclaims {
            assert!(poll_once(proclaim.as_mut()).is_pending());
        }
        for proclaim in proclaims {
            proclaim.await.unwrap();
        }
        assert_eq!(server.requests() - requests, 1);
    });
    of_worker.await.unwrap();
}
