//! The watch stream.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::direct::{bounded, fresh_name};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tonic::Code;

use super::{after_requests, busy, queue_session, times};
use crate::{
    client::{
        GetOptions,
        scripted::{Fate, Script},
    },
    session::{EtcdSession, watch::WatchGuard},
};

const STALE: Fate = Fate::Refused(Code::Unauthenticated, "etcdserver: invalid auth token");

fn observe(session: &EtcdSession, changes: &Arc<Notify>) -> WatchGuard {
    session.watches.observe(&session.layout.queue(&fresh_name()).unwrap(), changes)
}

/// This server answers each request before it reads the next one, and waits until its reply is read. A client that sent
/// all requests first would wait for ever as soon as the stream is full.
#[tokio::test(start_paused = true)]
async fn answers_are_read_before_further_watches_are_opened() {
    const WATCHES: usize = 500;
    let script = Script::default();
    let (session, changes) = (queue_session(&script).await, Arc::default());
    script.take_calls();
    let watches: Vec<_> = (0..WATCHES).map(|_| observe(&session, &changes)).collect();
    let all_open = timeout(Duration::from_secs(60), async {
        while script.count("Watch") < watches.len() {
            sleep(Duration::from_millis(1)).await;
        }
    });
    all_open.await.expect("client and server wait for each other");
}

/// Also a login that was renewed once.
#[tokio::test(start_paused = true)]
async fn stream_whose_login_is_refused_logs_in_each_time() {
    let script = Script::default();
    let (session, changes) = (queue_session(&script).await, Arc::default());
    for round in 1..=3 {
        script.take_calls();
        let mut is_refused = false;
        script.rule(move |call| {
            if call.is("Watch") && !std::mem::replace(&mut is_refused, true) {
                return Fate::Refused(Code::Unauthenticated, "etcdserver: invalid auth token");
            }
            Fate::Served
        });
        let since = Instant::now();
        let _watch = observe(&session, &changes);
        bounded(changes.notified()).await;
        let calls = script.take_calls();
        let of = |method| calls.iter().filter(|call| call.is(method)).count();
        assert_eq!(of("Authenticate"), 1, "round {round}");
        // The refused one, that of the client's own keys, the observer's.
        assert_eq!(of("Watch"), 3, "round {round}");
        assert_eq!(since.elapsed(), Duration::ZERO, "round {round}");
        // Longer than the longest pause, so that the stream counts as one that has worked.
        sleep(Duration::from_secs(3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stream_that_cannot_be_opened_is_retried_with_growing_pauses() {
    let script = Script::default();
    let _session = queue_session(&script).await;
    script.rule(busy("Watch"));
    script.take_calls();
    let since = Instant::now();
    script.end_watches();
    after_requests(&script, "Watch", 9).await;
    assert!(since.elapsed() > Duration::from_secs(3), "{:?}", times(&script, "Watch", since));
}

#[tokio::test(start_paused = true)]
async fn observers_are_notified_once_the_reopened_stream_has_their_watch() {
    let script = Script::default();
    let (session, changes) = (queue_session(&script).await, Arc::default());
    let _watch = observe(&session, &changes);
    bounded(changes.notified()).await;
    script.end_watches();
    bounded(changes.notified()).await;
    // And by nothing else.
    assert!(timeout(Duration::from_secs(60), changes.notified()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn stream_that_is_not_confirmed_in_time_is_given_up() {
    let script = Script::default();
    let (session, changes) = (queue_session(&script).await, Arc::default());
    let _watch = observe(&session, &changes);
    bounded(changes.notified()).await;
    script.rule(super::first(1, "Watch", Fate::Unanswered));
    let since = Instant::now();
    script.end_watches();
    changes.notified().await;
    assert!(since.elapsed() < super::REQUEST + Duration::from_secs(1), "{:?}", since.elapsed());
}

/// Nobody would hear of a change until the session's end.
#[tokio::test(start_paused = true)]
async fn login_of_a_stream_that_is_not_answered_is_given_up() {
    let script = Script::default();
    let (session, changes) = (queue_session(&script).await, Arc::default());
    let mut unserved = vec!["Authenticate", "Watch"];
    script.rule(move |call| match unserved.pop_if(|method| call.is(method)) {
        Some("Watch") => Fate::Refused(Code::Unauthenticated, "etcdserver: invalid auth token"),
        Some(_) => Fate::Lost,
        None => Fate::Served,
    });
    script.take_calls();
    let since = Instant::now();
    let _watch = observe(&session, &changes);
    bounded(changes.notified()).await;
    assert_eq!((script.count("Authenticate"), since.elapsed()), (1, super::REQUEST));
}

/// Another one would cost the server much.
#[tokio::test(start_paused = true)]
async fn stream_uses_the_login_that_a_request_has_renewed() {
    let script = Script::default();
    let (session, changes) = (queue_session(&script).await, Arc::default());
    script.rule(super::first(1, "Range", STALE));
    session.server.range("x", GetOptions::new()).await.unwrap();
    assert_eq!(script.count("Authenticate"), 1);
    script.take_calls();
    script.rule(super::first(1, "Watch", STALE));
    let _watch = observe(&session, &changes);
    bounded(changes.notified()).await;
    assert_eq!(script.count("Authenticate"), 0);
}

/// As by a server that refuses watches for lack of a permission.
#[tokio::test(start_paused = true)]
async fn stream_whose_watches_are_refused_again_is_reopened_with_growing_pauses() {
    const REFUSED: usize = 9;
    let script = Script::default();
    let (session, changes) = (queue_session(&script).await, Arc::default());
    let mut refused = 0;
    script.rule(move |call| {
        let key = if call.is("Watch") { call.watched().map(|(key, _)| key) } else { None };
        // Each stream begins with the watch of the client's own keys.
        let is_observer = key.is_some_and(|key| !key.starts_with(b"lockkit/:clients/"));
        refused += usize::from(is_observer);
        if is_observer && refused <= REFUSED { STALE } else { Fate::Served }
    });
    let since = Instant::now();
    let _watch = observe(&session, &changes);
    bounded(changes.notified()).await;
    assert!(since.elapsed() > Duration::from_secs(3), "{:?}", since.elapsed());
}
