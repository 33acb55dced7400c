//! Ended holds and attempts leave nothing in the client, however they ended.
//!
//! The client's `Debug` shows the tables; the runtime counts the tasks.

use std::time::Duration;

use crate::common::{TTL, client, eventually, in_time, kind, settle, tasks};
use lockkit_core::{ErrorKind, Lock, LockClient, LockName, Owner, memory::MemoryServer};
use tokio::time::sleep;

/// The number of locks that end in the same way.
const LOCKS: usize = 20;

/// How `Debug` shows empty tables, and that no task is parked.
const EMPTY_TABLES: [&str; 3] =
    ["Table { holds: {}, ", "reentry: ReentryTable(Mutex { data: {}, ", "parked: Parked { is_taken: false"];

/// Two clients of one server, and the number of tasks while both are idle.
struct Fixture {
    server: MemoryServer,
    client: LockClient,
    other: LockClient,
    tasks: usize,
}

impl Fixture {
    async fn new() -> Self {
        let server = MemoryServer::new();
        let (client, other) = (client(&server).await, client(&server).await);
        settle().await;
        Self { server, client, other, tasks: tasks() }
    }

    /// Returns locks of the client, each with its own owner, and the same locks of the other client.
    fn locks(&self) -> impl Iterator<Item = (Lock, Lock)> {
        let names = (0..LOCKS).map(|number| format!("lock {number}"));
        names.map(|name| {
            let lock = self.client.lock(&*name).unwrap().reentrant(&Owner::new());
            (lock, self.other.lock(&*name).unwrap())
        })
    }

    fn is_waiting(&self, name: &LockName) -> bool {
        self.server.inspect(name).waiters.len() == 1
    }

    /// Waits until the tables are empty and no additional task is left.
    async fn until_idle(&self) {
        eventually(TTL * 3, "all tables are empty", || self.kept().is_empty()).await;
        eventually(TTL * 3, "as many tasks as before", || tasks() == self.tasks).await;
    }

    /// Returns the tables that are not empty.
    fn kept(&self) -> Vec<&'static str> {
        let shown = format!("{:?}", self.client);
        EMPTY_TABLES.into_iter().filter(|table| !shown.contains(table)).collect()
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holds_and_waiting_attempts_are_in_the_tables() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.kept(), [""; 0]);
    let (lock, other) = fixture.locks().next().unwrap();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(fixture.kept(), EMPTY_TABLES[..2]);
    assert_eq!(tasks(), fixture.tasks, "a hold has no task");
    guard.release().await.unwrap();
    fixture.until_idle().await;

    let held = other.acquire().await.unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually(TTL, "it waits", || fixture.is_waiting(held.name())).await;
    assert_eq!(fixture.kept(), EMPTY_TABLES[1..]);
    assert_eq!(tasks(), fixture.tasks + 1, "the caller; its claim is parked");
    waiter.abort();
    held.release().await.unwrap();
    fixture.until_idle().await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn released_and_dropped_holds_are_forgotten() {
    let fixture = Fixture::new().await;
    for (lock, _) in fixture.locks() {
        let (guard, again, third) =
            (lock.acquire().await.unwrap(), lock.acquire().await.unwrap(), lock.try_acquire().await.unwrap());
        guard.release().await.unwrap();
        drop(again);
        third.unwrap().release().await.unwrap();
        drop(lock.acquire().await.unwrap());
    }
    fixture.until_idle().await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn attempts_without_a_grant_are_forgotten() {
    let fixture = Fixture::new().await;
    for (lock, other) in fixture.locks() {
        let held = other.acquire().await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert!(lock.acquire_timeout(Duration::from_millis(20)).await.unwrap().is_none());
        let waiters = [lock.clone(), lock].map(|lock| tokio::spawn(async move { lock.acquire().await }));
        eventually(TTL, "they wait", || fixture.is_waiting(held.name())).await;
        for waiter in waiters {
            waiter.abort();
        }
        eventually(TTL, "they have left", || !fixture.is_waiting(held.name())).await;
        held.release().await.unwrap();
    }
    fixture.until_idle().await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn waiters_of_one_owner_that_share_a_grant_are_forgotten() {
    let fixture = Fixture::new().await;
    for (lock, other) in fixture.locks() {
        let held = other.acquire().await.unwrap();
        let waiters = [lock.clone(), lock].map(|lock| tokio::spawn(async move { lock.acquire().await }));
        eventually(TTL, "they wait", || fixture.is_waiting(held.name())).await;
        held.release().await.unwrap();
        for waiter in waiters {
            in_time(waiter).await.unwrap().unwrap().release().await.unwrap();
        }
    }
    fixture.until_idle().await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lost_holds_are_forgotten_although_their_guards_live() {
    let fixture = Fixture::new().await;
    let mut lost = Vec::new();
    for (lock, _) in fixture.locks() {
        let deleted = lock.acquire().await.unwrap();
        fixture.server.delete_entries(deleted.name());
        assert_eq!(in_time(deleted.lost()).await.kind(), ErrorKind::Lost);
        let too_long = lock.max_hold(Duration::from_millis(50)).acquire().await.unwrap();
        in_time(too_long.lost()).await;
        lost.extend([deleted, too_long]);
    }
    fixture.until_idle().await;
    for (lock, _) in fixture.locks() {
        lost.push(lock.acquire().await.unwrap());
    }
    fixture.server.expire_all();
    fixture.until_idle().await;
    assert!(lost.iter().all(|guard| kind(guard.check()) == ErrorKind::Lost));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holds_that_pass_their_deadline_at_a_silent_server_are_forgotten() {
    let fixture = Fixture::new().await;
    let mut guards = Vec::new();
    for (lock, _) in fixture.locks() {
        guards.push(lock.acquire().await.unwrap());
    }
    fixture.server.hold_requests();
    sleep(TTL).await;
    fixture.server.deliver_requests();
    assert!(guards.iter().all(|guard| !guard.is_held()));
    fixture.until_idle().await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn clients_that_close_end_all_their_tasks() {
    let before = tasks();
    let fixture = Fixture::new().await;
    let mut guards = Vec::new();
    for (lock, other) in fixture.locks() {
        guards.push(lock.acquire().await.unwrap());
        tokio::spawn(async move { other.acquire().await });
    }
    settle().await;
    fixture.other.close().await.unwrap();
    fixture.client.close().await.unwrap();
    eventually(TTL, "no task of a client is left", || tasks() == before).await;
    assert_eq!(fixture.kept(), [""; 0]);
    drop(guards);
}
