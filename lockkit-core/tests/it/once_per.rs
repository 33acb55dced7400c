//! Work that runs once per period, with clocks that differ.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::common::{NAME, TTL, client, deliver_next, eventually, in_time, kind, name, settle};
use crate::memory_store::{granted, session};
use lockkit_core::{
    Clock, ErrorKind, LockClient, OncePer, Result, Turn,
    backend::{Grant, Session},
    limits::{ONCE_PERIOD_MAX, ONCE_PERIOD_MIN, ONCE_READ_PAUSE, ONCE_RECORD_RESERVE, TRY_ANSWER_MAX},
    memory::MemoryServer,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

const PERIOD: Duration = Duration::from_secs(60);

/// Returns the work of a process whose clock shows `ahead` more than 60 periods and the time since `start`.
fn work(client: &LockClient, start: Instant, ahead: Duration) -> OncePer {
    let now = move || UNIX_EPOCH + PERIOD * 60 + start.elapsed() + ahead;
    client.once_per(NAME, PERIOD).unwrap().wall_clock(now)
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn processes_with_different_clocks_do_the_work_once_in_each_period() {
    let server = MemoryServer::new();
    let (start, done) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut processes = Vec::new();
    for number in 0..5_u64 {
        let (client, done) = (client(&server).await, Arc::clone(&done));
        processes.push(tokio::spawn(async move {
            // Half a second apart, and each starts when its own clock shows a new period.
            let ahead = Duration::from_millis(500 * number);
            let work = work(&client, start, ahead);
            for period in 1..=10_u32 {
                let at = start + PERIOD * period - ahead;
                tokio::time::sleep_until(at).await;
                work.run(async |_| done.fetch_add(1, Ordering::SeqCst)).await.unwrap();
            }
        }));
    }
    for process in processes {
        tokio::time::timeout(PERIOD * 20, process).await.unwrap().unwrap();
    }
    assert_eq!(done.load(Ordering::SeqCst), 10);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_process_that_comes_while_another_works_does_not_wait_for_it() {
    let server = MemoryServer::new();
    let (one, other, start) = (client(&server).await, client(&server).await, Instant::now());
    let guard = work(&one, start, Duration::ZERO).begin().await.unwrap().unwrap();
    assert!(matches!(work(&other, start, Duration::ZERO).begin_timeout(TTL).await.unwrap(), Turn::Done));
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(guard);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn busy_lock_is_distinguished_from_done_work() {
    let server = MemoryServer::new();
    let (one, other, start) = (client(&server).await, client(&server).await, Instant::now());
    let guard = one.lock(NAME).unwrap().acquire().await.unwrap();
    let waiting = work(&other, start, Duration::ZERO);
    assert!(matches!(waiting.begin_timeout(Duration::from_millis(2_500)).await.unwrap(), Turn::Busy));
    assert_eq!(start.elapsed(), Duration::from_millis(2_500));
    let (turn, ()) = tokio::join!(waiting.begin(), async {
        sleep(TTL).await;
        guard.release().await.unwrap();
    });
    assert!(turn.unwrap().is_some());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_process_that_waited_for_the_lock_reads_the_record_again() {
    let server = MemoryServer::new();
    let (holder, start) = (client(&server).await, Instant::now());
    let guard = holder.lock(NAME).unwrap().acquire().await.unwrap();
    // Both have read that there is no record, and wait one behind the other.
    let mut processes = Vec::new();
    for waiters in 1..=2 {
        let work = work(&client(&server).await, start, Duration::ZERO);
        processes.push(tokio::spawn(async move { work.run(async |_| ()).await.unwrap() }));
        eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == waiters).await;
    }
    guard.release().await.unwrap();
    let mut worked = 0;
    for process in processes {
        worked += usize::from(in_time(process).await.unwrap().is_some());
    }
    assert_eq!(worked, 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_holder_that_lost_the_lock_writes_no_record() {
    let server = MemoryServer::new();
    let (one, other, start) = (client(&server).await, client(&server).await, Instant::now());
    let slow = work(&one, start, Duration::ZERO);
    server.hold_requests();
    let beginning = tokio::spawn(async move { slow.begin().await });
    // Its requests: the record, the lock, the record again; then it is stopped before the fourth, the new record.
    for _ in 0..3 {
        deliver_next(&server).await;
    }
    settle().await;
    assert_eq!(server.held_requests(), 1);
    server.delete_entries(&name());
    server.deliver_requests();
    let outcome = in_time(beginning).await.unwrap();
    let guard = work(&other, start, Duration::ZERO).begin().await.unwrap();
    match outcome {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Lost);
            assert!(guard.is_some(), "the work of this period is still to be done");
        }
        Ok(_) => panic!("it was not the holder any more"),
    }
}

/// The period ends between the decision and the write.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn the_period_that_was_decided_is_the_one_that_is_recorded() {
    let server = MemoryServer::new();
    let (client, read) = (client(&server).await, Arc::new(AtomicUsize::new(0)));
    let moving = move || UNIX_EPOCH + PERIOD * if read.fetch_add(1, Ordering::SeqCst) < 2 { 60 } else { 61 };
    let guard = client.once_per(NAME, PERIOD).unwrap().wall_clock(moving).begin().await.unwrap();
    guard.expect("the work of period 60").release().await.unwrap();
    let of_next_period = work(&client, Instant::now(), PERIOD).begin().await.unwrap();
    assert!(of_next_period.is_some(), "the work of period 61 is still to be done");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn period_that_begins_during_the_wait_for_the_lock_is_recorded() {
    let server = MemoryServer::new();
    let (one, other) = (client(&server).await, client(&server).await);
    let guard = one.lock(NAME).unwrap().acquire().await.unwrap();
    let work = work(&other, Instant::now(), PERIOD - ONCE_READ_PAUSE / 4);
    let (turn, ()) = tokio::join!(work.begin(), async {
        sleep(ONCE_READ_PAUSE / 2).await;
        guard.release().await.unwrap();
    });
    turn.unwrap().expect("the work of period 61").release().await.unwrap();
    assert!(work.begin().await.unwrap().is_none(), "the work of period 61 is done a second time");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn drain_is_not_taken_for_a_silent_store() {
    let server = MemoryServer::new();
    let (one, other, start) = (client(&server).await, client(&server).await, Instant::now());
    let guard = one.lock(NAME).unwrap().acquire().await.unwrap();
    let waiting = work(&other, start, Duration::ZERO);
    let (turn, drained) = tokio::join!(waiting.begin_timeout(TTL * 2), other.drain(TTL));
    assert_eq!((kind(turn), drained.unwrap()), (ErrorKind::Closed, ()));
    guard.release().await.unwrap();
    // While the record is being written, the lock is held: the drain waits for the work.
    server.hold_requests();
    let work = work(&one, start, Duration::ZERO);
    let beginning = tokio::spawn(async move { work.begin_timeout(TTL * 2).await });
    for _ in 0..3 {
        deliver_next(&server).await;
    }
    let draining = tokio::spawn(async move { one.drain(TTL * 2).await });
    settle().await;
    server.deliver_requests();
    let Turn::Yours(guard) = in_time(beginning).await.unwrap().unwrap() else { panic!("not begun") };
    assert!(guard.is_held());
    guard.release().await.unwrap();
    in_time(draining).await.unwrap().unwrap();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_begins_after_an_outage() {
    let server = MemoryServer::new();
    let (client, start) = (client(&server).await, Instant::now());
    let work = work(&client, start, Duration::ZERO);
    server.hold_requests();
    let outage = TTL * 2;
    let (begun, ()) = tokio::join!(work.begin(), async {
        sleep(outage).await;
        server.deliver_requests();
    });
    assert!(begun.unwrap().is_some(), "it waits through the outage");
    server.hold_requests();
    let later = client.once_per("other", PERIOD).unwrap();
    let start = Instant::now();
    assert_eq!(kind(later.begin_timeout(TTL).await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= TTL + TRY_ANSWER_MAX, "{:?}", start.elapsed());
}

/// The hold would last much longer than the time limit.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn turn_whose_record_is_not_confirmed_ends_in_time() {
    let server = MemoryServer::new();
    let builder = LockClient::builder(server.backend()).ttl(TTL * 10).clock(Clock::tokio());
    let (client, start) = (builder.build().await.unwrap(), Instant::now());
    let work = work(&client, start, Duration::ZERO);
    server.hold_requests();
    let beginning = tokio::spawn(async move { work.begin_timeout(ONCE_READ_PAUSE).await });
    // All but the writing of the record.
    for _ in 0..3 {
        deliver_next(&server).await;
    }
    let error = in_time(beginning).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("this period may count as done"), "{error}");
    let limit = ONCE_READ_PAUSE + TRY_ANSWER_MAX + Duration::from_millis(10);
    assert!(start.elapsed() <= limit, "{:?}", start.elapsed());
    server.deliver_requests();
}

/// The store has reported another holder, whatever it answers to the last look.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn busy_turn_stays_busy_if_the_last_look_fails() {
    let server = MemoryServer::new();
    let (one, other, start) = (client(&server).await, client(&server).await, Instant::now());
    let guard = one.lock(NAME).unwrap().acquire().await.unwrap();
    let waiting = work(&other, start, Duration::ZERO);
    let (turn, ()) = tokio::join!(waiting.begin_timeout(ONCE_READ_PAUSE * 2), async {
        sleep(ONCE_READ_PAUSE * 3 / 2).await;
        server.hold_requests();
    });
    assert!(matches!(turn, Ok(Turn::Busy)), "{turn:?}");
    server.deliver_requests();
    drop(guard);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn attempts_in_an_outage_follow_each_other_with_growing_pauses() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let work = work(&client, Instant::now(), Duration::ZERO);
    server.lose_replies(usize::MAX);
    let before = server.requests();
    assert_eq!(kind(work.begin_timeout(TTL / 2).await), ErrorKind::Unavailable);
    let requests = server.requests() - before;
    assert!((3..20).contains(&requests), "{requests} requests in {:?}, with the heartbeats", TTL / 2);
    server.lose_replies(0);
}

/// The pauses between two attempts last up to two seconds.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn process_that_pauses_in_an_outage_is_closed_at_once() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let work = work(&client, Instant::now(), Duration::ZERO);
    server.lose_replies(usize::MAX);
    let beginning = tokio::spawn(async move { work.begin().await });
    sleep(TTL / 2).await;
    server.lose_replies(0);
    let start = Instant::now();
    client.close().await.unwrap();
    assert_eq!(kind(in_time(beginning).await.unwrap()), ErrorKind::Closed);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_record_of_a_far_future_is_an_error() {
    let server = MemoryServer::new();
    let (one, start) = (client(&server).await, Instant::now());
    drop(work(&one, start, PERIOD * 2).begin().await.unwrap().unwrap());
    let behind = work(&one, start, Duration::ZERO);
    assert_eq!(kind(behind.begin_timeout(TTL).await), ErrorKind::Unexpected);
    let a_little_behind = work(&one, start, PERIOD);
    assert!(a_little_behind.begin().await.unwrap().is_none());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn error_about_a_far_future_says_how_far_and_what_to_check() {
    let server = MemoryServer::new();
    let (client, start) = (client(&server).await, Instant::now());
    drop(work(&client, start, PERIOD * 2).begin().await.unwrap().unwrap());
    let error = work(&client, start, Duration::ZERO).begin().await.unwrap_err().to_string();
    assert!(error.contains("120s ahead of this host's wall clock: check it"), "{error}");
}

/// Written by something else: whether the work is done is unknown.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn record_that_is_no_period_is_an_error() {
    let (server, start) = (MemoryServer::new(), Instant::now());
    let holder = session(&server).await;
    let work = work(&client(&server).await, start, Duration::ZERO);
    for record in ["", "yesterday", "-1", "+3600000", "3600000.0"] {
        let grant = granted(&*holder, NAME).await;
        assert!(holder.records().unwrap().write(&grant, record, PERIOD).await.unwrap());
        holder.release(&grant).await.unwrap();
        assert_eq!(kind(work.begin().await), ErrorKind::Unexpected, "{record:?}");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn periods_that_make_no_sense_are_refused() {
    let client = client(&MemoryServer::new()).await;
    for period in [Duration::ZERO, ONCE_PERIOD_MIN / 2, ONCE_PERIOD_MAX + ONCE_PERIOD_MIN] {
        assert_eq!(kind(client.once_per(NAME, period)), ErrorKind::InvalidConfig, "{period:?}");
    }
    for period in [ONCE_PERIOD_MIN, ONCE_PERIOD_MAX] {
        assert!(client.once_per(NAME, period).is_ok(), "{period:?}");
    }
    let before_1970 = || SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    let work = client.once_per(NAME, PERIOD).unwrap().wall_clock(before_1970);
    assert_eq!(kind(work.begin().await), ErrorKind::InvalidConfig);
}

/// The record is kept for two periods and a day, in which a process whose clock is behind must find it.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_record_outlives_its_period_by_a_day_and_ends() {
    let server = MemoryServer::new();
    let (client, start) = (client(&server).await, Instant::now());
    work(&client, start, Duration::ZERO).run(async |_| ()).await.unwrap().unwrap();
    let behind = || client.once_per(NAME, PERIOD).unwrap().wall_clock(|| UNIX_EPOCH + PERIOD * 60);
    let kept = PERIOD * 2 + ONCE_RECORD_RESERVE;
    sleep(kept - TTL).await;
    assert!(matches!(behind().begin_timeout(TTL / 2).await.unwrap(), Turn::Done));
    sleep(TTL * 2).await;
    assert!(matches!(behind().begin_timeout(TTL / 2).await.unwrap(), Turn::Yours(_)));
}

/// Returns a holder that has written its record while a process waits for the lock.
async fn holder_with_a_process_behind_it(
    server: &MemoryServer,
) -> (Arc<dyn Session>, Grant, JoinHandle<Result<Turn>>) {
    let holder = session(server).await;
    let grant = granted(&*holder, NAME).await;
    let work = work(&client(server).await, Instant::now(), Duration::ZERO);
    let beginning = tokio::spawn(async move { work.begin_timeout(TTL).await });
    eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
    let record = (PERIOD * 60).as_millis().to_string();
    assert!(holder.records().unwrap().write(&grant, &record, PERIOD).await.unwrap());
    (holder, grant, beginning)
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn process_that_waits_for_the_lock_finds_the_record_that_its_holder_writes() {
    let (server, start) = (MemoryServer::new(), Instant::now());
    let (_holder, _grant, beginning) = holder_with_a_process_behind_it(&server).await;
    assert!(matches!(in_time(beginning).await.unwrap().unwrap(), Turn::Done));
    assert!(start.elapsed() <= ONCE_READ_PAUSE + Duration::from_millis(10), "{:?}", start.elapsed());
}

/// The last look follows the last wait.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn record_that_is_written_during_the_last_wait_is_found() {
    let (server, start) = (MemoryServer::new(), Instant::now());
    let holder = session(&server).await;
    let grant = granted(&*holder, NAME).await;
    let work = work(&client(&server).await, start, Duration::ZERO);
    let record = (PERIOD * 60).as_millis().to_string();
    let (turn, written) = tokio::join!(work.begin_timeout(ONCE_READ_PAUSE / 2), async {
        sleep(ONCE_READ_PAUSE / 4).await;
        holder.records().unwrap().write(&grant, &record, PERIOD).await.unwrap()
    });
    assert!(written && matches!(turn, Ok(Turn::Done)), "{turn:?}");
}

/// The answer is known, and nothing was done under the lock.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_that_is_done_is_reported_before_the_lock_is_released() {
    let (server, start) = (MemoryServer::new(), Instant::now());
    let (holder, grant, beginning) = holder_with_a_process_behind_it(&server).await;
    holder.release(&grant).await.unwrap();
    server.hold_requests();
    // The grant is confirmed and the record read; the release that follows is not answered.
    for _ in 0..2 {
        deliver_next(&server).await;
    }
    assert!(matches!(in_time(beginning).await.unwrap().unwrap(), Turn::Done));
    assert!(start.elapsed() < TTL / 6, "{:?}", start.elapsed());
    server.deliver_requests();
}
