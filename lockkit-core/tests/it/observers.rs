//! Observers: what they see of a leader, what they read in the next session, and what they leave.

use std::{
    sync::atomic::Ordering,
    time::{Duration, SystemTime},
};

use crate::common::{NAME, TTL, client, eventually, in_time, name, settle, tasks};
use crate::scripted::Scripted;
use lockkit_core::{
    Clock, LockClient, Status, backend::Lifetime, limits::RECHECK_PAUSE_MIN, memory::MemoryServer,
};
use tokio::time::Instant;

/// Its watch ended with the session, and would notify of nothing.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn observer_whose_session_is_lost_reads_in_the_next_one_at_once() {
    let server = MemoryServer::new();
    let observing = client(&server).await;
    let mut observer = observing.election(NAME).unwrap().observe();
    assert_eq!(in_time(observer.next()).await.unwrap().unwrap(), None);
    let start = Instant::now();
    server.expire_all();
    server.drop_notifications(true);
    let leadership = client(&server).await.election(NAME).unwrap().campaign("new").await.unwrap();
    let leader = in_time(observer.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((&*leader.value, leader.token), ("new", leadership.token()));
    assert!(start.elapsed() < RECHECK_PAUSE_MIN / 2, "{:?}", start.elapsed());
    server.drop_notifications(false);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn observer_that_is_dropped_between_two_sessions_leaves_no_task() {
    let backend = Scripted::with_elections(Lifetime::Session);
    let client = backend.client().await;
    backend.script.open_hangs.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
    eventually(TTL, "opening", || backend.script.opened.load(Ordering::SeqCst) == 2).await;
    let before = tasks();
    let observer = client.election(NAME).unwrap().observe();
    settle().await;
    assert_eq!(tasks(), before + 1, "it waits for a session");
    drop(observer);
    settle().await;
    assert_eq!(tasks(), before);
}

/// The pauses between two attempts last up to two seconds.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn observer_that_is_dropped_in_its_pause_leaves_no_task() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    settle().await;
    let before = tasks();
    server.lose_replies(usize::MAX);
    let observer = client.election(NAME).unwrap().observe();
    settle().await;
    assert_eq!(tasks(), before + 1, "it pauses");
    drop(observer);
    settle().await;
    assert_eq!(tasks(), before);
    server.lose_replies(0);
}

/// An observer recognizes by it an answer that is older than what it has reported.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn each_value_of_a_leader_has_a_higher_number_than_the_one_before() {
    let server = MemoryServer::new();
    let leadership = client(&server).await.election(NAME).unwrap().campaign("0").await.unwrap();
    let number = || server.inspect(&name()).holder.unwrap().metadata.unwrap().proposal.unwrap().number;
    let mut numbers = vec![number()];
    for value in ["1", "2"] {
        leadership.proclaim(value).await.unwrap();
        numbers.push(number());
    }
    assert!(numbers.is_sorted_by(|earlier, later| earlier < later), "{numbers:?}");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn leader_is_seen_with_its_label_and_the_time_of_its_claim() {
    let builder = LockClient::builder(MemoryServer::new().backend()).ttl(TTL).clock(Clock::tokio());
    let election = builder.label("billing").build().await.unwrap().election(NAME).unwrap();
    // A claim counts in whole milliseconds.
    let before = SystemTime::now() - Duration::from_millis(1);
    let leadership = election.campaign("me").await.unwrap();
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!(leader.label.as_deref(), Some("billing"));
    let since = leader.since.unwrap();
    assert!(before <= since && since <= SystemTime::now(), "{since:?}");
    drop(leadership);
}
