//! Sets of locks: order, tokens, loss, release, options.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::common::{NAME, TTL, client, eventually, in_time, kind, settle};
use crate::scripted::Scripted;
use lockkit_core::{
    Clock, ErrorKind, LockClient, LockName, Owner, RunError, SetGuard,
    backend::Lifetime,
    limits::{LOCKS_PER_SET_MAX, RELEASE_ANSWER_MAX},
    memory::MemoryServer,
};
use tokio::time::{Instant, sleep, timeout};

pub(crate) const NAMES: [&str; 3] = ["accounts/3", "accounts/7", "ledger"];

pub(crate) fn lock_name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub(crate) fn is_taken(server: &MemoryServer, text: &str) -> bool {
    server.inspect(&lock_name(text)).holder.is_some()
}

pub(crate) async fn set_of(client: &LockClient) -> SetGuard {
    client.lock_all(NAMES).unwrap().acquire().await.unwrap()
}

/// How a task of [`tasks_finish`] acquires its names.
#[derive(Clone, Copy)]
enum Order {
    /// By a set.
    OfTheSet,
    /// One lock after the other, as the caller lists them.
    OfTheCaller,
}

/// Runs 50 tasks, each of which acquires random ones of eight names, in a random order, a few times. Returns whether
/// they finish.
async fn tasks_finish(order: Order) -> bool {
    let server = MemoryServer::new();
    let holders: Arc<Vec<AtomicU32>> = Arc::new((0..8).map(|_| AtomicU32::new(0)).collect());
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(client(&server).await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..50 {
        let (client, holders) = (clients[task % clients.len()].clone(), Arc::clone(&holders));
        let mut random = fastrand::Rng::with_seed(task as u64);
        tasks.spawn(async move {
            for _ in 0..4 {
                let mut indices: Vec<usize> = (0..8).collect();
                random.shuffle(&mut indices);
                indices.truncate(random.usize(2..=5));
                let names = indices.iter().map(|index| format!("name {index}"));
                let (mut set, mut locks) = (None, Vec::new());
                match order {
                    Order::OfTheSet => set = Some(client.lock_all(names).unwrap().acquire().await.unwrap()),
                    Order::OfTheCaller => {
                        for name in names {
                            locks.push(client.lock(name).unwrap().acquire().await.unwrap());
                        }
                    }
                }
                for index in &indices {
                    assert_eq!(holders[*index].fetch_add(1, Ordering::SeqCst), 0, "two holders");
                }
                sleep(Duration::from_millis(random.u64(0..5))).await;
                for index in &indices {
                    holders[*index].fetch_sub(1, Ordering::SeqCst);
                }
                drop(locks);
                if let Some(set) = set {
                    set.release().await.unwrap();
                }
            }
        });
    }
    // A panic of a task is one of the test.
    timeout(TTL * 10, async { while tasks.join_next().await.map(Result::unwrap).is_some() {} }).await.is_ok()
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn tasks_with_random_sets_of_eight_names_all_finish() {
    assert!(tasks_finish(Order::OfTheSet).await, "a deadlock");
}

/// Shows that the test above can fail.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn same_tasks_with_the_order_of_their_callers_deadlock() {
    assert!(!tasks_finish(Order::OfTheCaller).await, "the tasks never wait for each other in a circle");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn names_are_acquired_once_each_in_the_order_of_their_bytes() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let set = client.lock_all(["b", "a/b", "ä", "a", "B", "b", "a"]).unwrap();
    let names: Vec<&str> = set.names().map(LockName::as_str).collect();
    assert_eq!(names, ["B", "a", "a/b", "b", "ä"]);
    let before = server.requests();
    let guard = set.acquire().await.unwrap();
    assert_eq!(server.requests() - before, 5, "one request for each name");
    let tokens: Vec<_> = guard.tokens().map(|(_, token)| token).collect();
    assert!(tokens.is_sorted(), "granted in this order");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn set_has_the_token_of_each_of_its_locks() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = set_of(&client).await;
    for (name, token) in guard.tokens() {
        let holder = server.inspect(name).holder.unwrap();
        assert_eq!((holder.token, guard.token(name)), (Some(token), Some(token)));
    }
    assert_eq!(guard.tokens().len(), NAMES.len());
    assert_eq!(guard.token("accounts/5"), None);
    assert!(guard.is_held() && guard.remaining() > Duration::ZERO && guard.remaining() <= TTL);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn set_without_names_or_with_too_many_is_refused() {
    let client = client(&MemoryServer::new()).await;
    let names = |count: usize| (0..count).map(|number| format!("{number}")).collect::<Vec<_>>();
    assert!(client.lock_all(names(LOCKS_PER_SET_MAX)).is_ok());
    assert!(client.lock_all(vec!["same"; LOCKS_PER_SET_MAX + 1]).is_ok(), "duplicates count once");
    for refused in [names(0), names(LOCKS_PER_SET_MAX + 1), vec![String::new()]] {
        assert_eq!(kind(client.lock_all(refused)), ErrorKind::InvalidName);
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn loss_of_one_lock_is_the_loss_of_the_set() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = set_of(&client).await;
    server.delete_entries(&lock_name(NAMES[1]));
    let lost = in_time(guard.lost()).await;
    assert_eq!((lost.kind(), lost.lock()), (ErrorKind::Lost, Some(&lock_name(NAMES[1]))));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(is_taken(&server, NAMES[0]) && is_taken(&server, NAMES[2]), "until the guard is dropped");

    // A lock with a smaller name is lost later: the first loss stays, although nobody has checked until then.
    server.delete_entries(&lock_name(NAMES[0]));
    sleep(TTL).await;
    assert!(!guard.is_held());
    assert_eq!(guard.check().unwrap_err().lock(), Some(&lock_name(NAMES[1])));
    let stopped = guard.run(async { panic!("begun") }).await;
    assert!(matches!(stopped, Err(RunError::Stopped(error)) if error.lock() == Some(&lock_name(NAMES[1]))));
    let released = guard.release().await.unwrap_err();
    assert_eq!((released.kind(), released.lock()), (ErrorKind::Lost, Some(&lock_name(NAMES[1]))));
    assert!(server.is_empty(), "the locks that were left are released");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lost_set_is_seen_without_waiting() {
    let server = MemoryServer::new();
    let guard = set_of(&client(&server).await).await;
    server.delete_entries(&lock_name(NAMES[2]));
    sleep(TTL).await;
    assert!(!guard.is_held());
    assert_eq!(guard.check().unwrap_err().lock(), Some(&lock_name(NAMES[2])));
    assert!(in_time(guard.lost()).await.lock() == Some(&lock_name(NAMES[2])));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_is_stopped_when_one_lock_of_its_set_is_lost() {
    let server = MemoryServer::new();
    let set = client(&server).await.lock_all(NAMES).unwrap();
    let start = Instant::now();
    let stopped = set.run(async |guard| {
        assert!(guard.is_held());
        server.delete_entries(&lock_name(NAMES[2]));
        std::future::pending::<()>().await;
    });
    let stopped = in_time(stopped).await.unwrap_err();
    assert!(matches!(&stopped, RunError::Stopped(error) if error.kind() == ErrorKind::Lost), "{stopped:?}");
    assert!(start.elapsed() < TTL);
    eventually(TTL, "all are released", || server.is_empty()).await;
    assert_eq!(set.run(async |guard| guard.tokens().len()).await.unwrap(), NAMES.len());
    assert!(server.is_empty(), "released after the work");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lock_lost_during_the_wait_for_another_starts_the_acquire_again() {
    let server = MemoryServer::new();
    let (holding, waiting) = (client(&server).await, client(&server).await);
    let last = holding.lock(NAMES[2]).unwrap().acquire().await.unwrap();
    let set = waiting.lock_all(NAMES).unwrap();
    let waiter = tokio::spawn(async move { set.acquire().await });
    let is_waiting = || server.inspect(&lock_name(NAMES[2])).waiters.len() == 1;
    eventually(TTL, "it waits for the last", is_waiting).await;
    let first = server.inspect(&lock_name(NAMES[0])).holder.unwrap().token;
    server.delete_entries(&lock_name(NAMES[0]));
    let again = || server.inspect(&lock_name(NAMES[0])).holder.is_some_and(|holder| holder.token != first);
    eventually(TTL * 2, "the lost one is acquired again", || again() && is_waiting()).await;
    last.release().await.unwrap();
    let guard = in_time(waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
    assert!(guard.token(NAMES[0]) > first);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn locks_that_are_lost_at_once_are_acquired_again_with_growing_pauses() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let set = client.lock_all(NAMES).unwrap().max_hold(Duration::ZERO);
    assert_eq!(kind(set.try_acquire().await), ErrorKind::Lost, "a try does not start again");
    let before = server.requests();
    let (start, limit) = (Instant::now(), Duration::from_secs(20));
    assert_eq!(kind(set.acquire_timeout(limit).await), ErrorKind::Lost);
    assert!(start.elapsed() <= limit);
    let requests = server.requests() - before;
    assert!((10..200).contains(&requests), "{requests} requests in {limit:?}");
    eventually(TTL, "nothing is left", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn set_that_waits_is_closed_with_its_client() {
    let server = MemoryServer::new();
    let (holding, waiting) = (client(&server).await, client(&server).await);
    let _last = holding.lock(NAMES[2]).unwrap().acquire().await.unwrap();
    let set = waiting.lock_all(NAMES).unwrap();
    let forever = tokio::spawn({
        let set = set.clone();
        async move { set.acquire().await }
    });
    let limited = tokio::spawn(async move { set.acquire_timeout(TTL).await });
    settle().await;
    waiting.close().await.unwrap();
    assert_eq!(kind(in_time(forever).await.unwrap()), ErrorKind::Closed);
    assert_eq!(kind(in_time(limited).await.unwrap()), ErrorKind::Closed);
    assert!(!is_taken(&server, NAMES[0]));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn releases_of_a_set_share_one_time_limit() {
    let server = MemoryServer::new();
    let builder = LockClient::builder(server.backend()).ttl(Duration::from_secs(60)).clock(Clock::tokio());
    let guard = set_of(&builder.build().await.unwrap()).await;
    server.hold_requests();
    let start = Instant::now();
    assert_eq!(kind(guard.release().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= RELEASE_ANSWER_MAX + Duration::from_millis(10), "{:?}", start.elapsed());
    server.deliver_requests();
    eventually(Duration::from_secs(1), "released after the outage", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn refused_release_keeps_no_other_from_being_sent() {
    let backend = Scripted::new(Lifetime::Hold);
    let guard = set_of(&backend.client().await).await;
    backend.script.release_panics.store(true, Ordering::SeqCst);
    in_time(guard.release()).await.unwrap();
    assert_eq!(backend.script.releases.load(Ordering::SeqCst), 3, "all, also the one that panicked at first");

    let guard = set_of(&backend.client().await).await;
    backend.script.releases_refused.store(true, Ordering::SeqCst);
    assert_eq!(kind(in_time(guard.release()).await), ErrorKind::Denied);
    assert!(backend.script.releases_tried.load(Ordering::SeqCst) >= 3, "each of them was sent");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn dropped_set_is_released_also_as_the_last_handle_of_its_client() {
    let server = MemoryServer::new();
    let guard = set_of(&client(&server).await).await;
    drop(guard);
    let is_closed = || server.is_empty() && server.sessions() == 0;
    eventually(Duration::from_millis(100), "released and closed", is_closed).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn owner_re_enters_its_locks_by_a_set() {
    let server = MemoryServer::new();
    let (client, owner) = (client(&server).await, Owner::new());
    let outer = client.lock(NAMES[1]).unwrap().reentrant(&owner).acquire().await.unwrap();
    let set = client.lock_all(NAMES).unwrap().reentrant(&owner);
    let guard = set.try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.token(NAMES[1]), Some(outer.token()));
    guard.release().await.unwrap();
    assert!(outer.is_held() && is_taken(&server, NAMES[1]));
    assert!(!is_taken(&server, NAMES[0]) && !is_taken(&server, NAMES[2]));
    assert!(client.lock_all([NAMES[1], NAME]).unwrap().try_acquire().await.unwrap().is_none());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn forgotten_set_is_ended_by_max_hold() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let longest = TTL * 2;
    let guard = client.lock_all(NAMES).unwrap().max_hold(longest).acquire().await.unwrap();
    assert!(guard.remaining() <= longest);
    let _forgotten = guard;
    let start = Instant::now();
    let next = in_time(client.lock_all(NAMES).unwrap().acquire()).await.unwrap();
    assert!(start.elapsed() >= longest - Duration::from_millis(10), "{:?}", start.elapsed());
    assert!(next.is_held());
}

/// The tokens of a memory server show the order of its grants.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn last_lock_of_a_set_is_released_first() {
    let server = MemoryServer::new();
    let set = set_of(&client(&server).await).await;
    let other = client(&server).await;
    let waiting = NAMES.map(|name| {
        let lock = other.lock(name).unwrap();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    });
    settle().await;
    set.release().await.unwrap();
    let mut tokens = Vec::new();
    for waiting in waiting {
        tokens.push(in_time(waiting).await.unwrap().token());
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier > later), "{tokens:?}");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn set_whose_last_lock_is_lost_when_it_is_granted_is_no_set() {
    let set = client(&MemoryServer::new()).await.lock_all(["last"]).unwrap().max_hold(Duration::ZERO);
    assert_eq!(kind(set.try_acquire().await), ErrorKind::Lost);
}
