//! Callers that block: without a runtime they need none, and inside one they are refused.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::checked::Counted;
use crate::common::{HANG, NAME, kind, name};
use lockkit_core::{
    Error, ErrorKind, LockClient, LockName, Owner, RunError, Status,
    backend::Contender,
    blocking::{Client, Guard, SetGuard},
    memory::MemoryServer,
};
use tokio::runtime::{Builder, Runtime};

fn client(server: &MemoryServer) -> Client {
    LockClient::builder(server.backend()).build_blocking().unwrap()
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < HANG, "not within {HANG:?}: {what}");
        thread::yield_now();
    }
}

/// Runs `work` on a thread, so that a hang fails the test instead of blocking it, and counts what its clients leave.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    thread::spawn(move || {
        let counted = Counted::begin();
        let outcome = work();
        drop(counted);
        done.send(outcome)
    });
    // The message of a panic is in the output of its thread.
    outcome.recv_timeout(HANG * 2).expect("no hang and no panic")
}

fn runtimes() -> [Runtime; 2] {
    let multi_thread = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    [Builder::new_current_thread().enable_all().build().unwrap(), multi_thread]
}

/// Calls everything that blocks, and returns the errors.
fn errors_of_all_calls(server: &MemoryServer, client: &Client) -> Vec<Error> {
    let lock = client.lock("refused").unwrap();
    let set = client.lock_all(["refused", "too"]).unwrap();
    let stopped = |error: RunError<()>| error.into_error();
    vec![
        LockClient::builder(server.backend()).build_blocking().map(drop).unwrap_err(),
        lock.acquire().unwrap_err(),
        lock.try_acquire().unwrap_err(),
        lock.acquire_timeout(HANG).unwrap_err(),
        lock.run(|_| unreachable!("begun")).map_err(stopped).unwrap_err(),
        lock.try_run(|_| unreachable!("begun")).map_err(stopped).unwrap_err(),
        lock.run_timeout(HANG, |_| unreachable!("begun")).map_err(stopped).unwrap_err(),
        set.acquire().unwrap_err(),
        set.try_acquire().unwrap_err(),
        set.acquire_timeout(HANG).unwrap_err(),
        set.run(|_| unreachable!("begun")).map_err(stopped).unwrap_err(),
        client.inspect(NAME).unwrap_err(),
        client.list("").next_page().unwrap_err(),
        client.break_lock(NAME, &Contender::new("entry", None, None)).unwrap_err(),
        client.drain(HANG).unwrap_err(),
        client.close().unwrap_err(),
    ]
}

#[test]
fn blocking_call_inside_a_runtime_is_refused_and_sends_nothing() {
    in_time(|| {
        let server = MemoryServer::new();
        // No heartbeat is due meanwhile.
        let client = LockClient::builder(server.backend()).ttl(HANG * 20).build_blocking().unwrap();
        let before = server.requests();
        let check = |errors: Vec<Error>| {
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("Client::as_async"), "{error}");
            }
        };
        for runtime in runtimes() {
            runtime.block_on(async {
                check(errors_of_all_calls(&server, &client));
                let (server, client) = (server.clone(), client.clone());
                let in_task = |errors: fn(&MemoryServer, &Client) -> Vec<Error>| {
                    let (server, client) = (server.clone(), client.clone());
                    move || errors(&server, &client)
                };
                check(tokio::task::spawn_blocking(in_task(errors_of_all_calls)).await.unwrap());
                let task = in_task(errors_of_all_calls);
                check(tokio::spawn(async move { task() }).await.unwrap());
            });
        }
        assert_eq!(server.requests(), before);
        assert_eq!(client.status(), Status::Connected, "neither drained nor closed");
        assert!(client.lock(NAME).unwrap().try_acquire().unwrap().is_some(), "outside it works");
    });
}

#[test]
fn blocking_call_that_is_refused_names_its_operation_and_its_lock() {
    in_time(|| {
        let server = MemoryServer::new();
        let client = client(&server);
        let guard = client.lock("refused").unwrap().acquire().unwrap();
        let set = client.lock_all(["a", "b"]).unwrap().acquire().unwrap();
        let [runtime, _] = runtimes();
        let errors = runtime.block_on(async {
            let mut errors = errors_of_all_calls(&server, &client);
            errors.extend([guard.release().unwrap_err(), set.release().unwrap_err()]);
            errors
        });
        let named = |error: &Error| (error.operation(), error.lock().map(LockName::to_string));
        let named: Vec<(&str, Option<String>)> = errors.iter().map(named).collect();
        let mut expected: Vec<(&str, Option<String>)> = vec![("connect", None)];
        expected.resize(7, ("acquire", Some("refused".to_owned())));
        // Of the set, which has no single name.
        expected.resize(11, ("acquire", None));
        for operation in ["inspect", "list locks", "break", "drain", "close"] {
            expected.push((operation, None));
        }
        expected.push(("release", Some("refused".to_owned())));
        expected.push(("release", None));
        assert_eq!(named, expected);
    });
}

#[test]
fn guards_and_clients_are_dropped_inside_a_runtime_without_blocking() {
    in_time(|| {
        for runtime in runtimes() {
            let server = MemoryServer::new();
            let client = client(&server);
            let guard = client.lock(NAME).unwrap().acquire().unwrap();
            let set = client.lock_all(["a", "b"]).unwrap().acquire().unwrap();
            let refused = client.lock("refused").unwrap().acquire().unwrap();
            runtime.block_on(async {
                assert!(guard.is_held() && set.is_held());
                drop((guard, set));
                assert_eq!(kind(refused.release()), ErrorKind::Unsupported);
                drop(client);
            });
            eventually("released and closed", || server.is_empty() && server.sessions() == 0);
        }
    });
}

#[test]
fn async_and_blocking_callers_share_a_client() {
    in_time(|| {
        let server = MemoryServer::new();
        let client = client(&server);
        let guard = client.lock(NAME).unwrap().acquire().unwrap();
        let [runtime, _] = runtimes();
        runtime.block_on(async {
            let lock = client.as_async().lock(NAME).unwrap();
            assert!(lock.try_acquire().await.unwrap().is_none());
        });
        guard.release().unwrap();
    });
}

#[test]
fn outcomes_are_those_of_the_async_client() {
    in_time(|| {
        let server = MemoryServer::new();
        let (one, other) = (client(&server), client(&server));
        let guard = one.lock(NAME).unwrap().acquire().unwrap();
        let busy = other.lock(NAME).unwrap();
        assert!(busy.try_acquire().unwrap().is_none());
        let (start, limit) = (Instant::now(), Duration::from_millis(30));
        assert!(busy.acquire_timeout(limit).unwrap().is_none());
        assert!(start.elapsed() >= limit);
        assert_eq!(other.inspect(NAME).unwrap().holder.unwrap().token, Some(guard.token()));
        let token = guard.token();
        guard.release().unwrap();
        assert!(busy.acquire().unwrap().token() > token);
        assert_eq!(kind(other.lock("")), ErrorKind::InvalidName);
        assert_eq!(busy.run(|guard| guard.name().clone()).unwrap(), name());
        other.close().unwrap();
        assert_eq!(other.status(), Status::Closed);
        assert_eq!(kind(busy.acquire()), ErrorKind::Closed);
    });
}

#[test]
fn work_that_finished_after_the_loss_keeps_its_outcome() {
    in_time(|| {
        let server = MemoryServer::new();
        let client = client(&server);
        let lose = |is_held: &dyn Fn() -> bool| {
            server.expire_all();
            eventually("the loss is reported", || !is_held());
            "payment booked"
        };
        let finished = client.lock(NAME).unwrap().run(|guard| lose(&|| guard.is_held())).unwrap_err();
        assert!(matches!(finished, RunError::Finished { outcome: "payment booked", .. }), "{finished:?}");
        let set = client.lock_all(["a", "b"]).unwrap();
        let finished = set.run(|guard| lose(&|| guard.is_held())).unwrap_err();
        assert!(matches!(finished, RunError::Finished { outcome: "payment booked", .. }), "{finished:?}");
    });
}

#[test]
fn work_of_a_busy_lock_is_not_started() {
    in_time(|| {
        let server = MemoryServer::new();
        // The client's thread must have asked the server by then, also on a busy machine.
        let (client, limit) = (client(&server), Duration::from_millis(500));
        let (lock, holder) = (client.lock(NAME).unwrap(), client.lock(NAME).unwrap().acquire().unwrap());
        assert!(lock.try_run(|_| unreachable!("begun")).unwrap().is_none());
        let start = Instant::now();
        assert!(lock.run_timeout(limit, |_| unreachable!("begun")).unwrap().is_none());
        assert!(start.elapsed() >= limit);
        holder.release().unwrap();
        assert_eq!(lock.try_run(|guard| guard.name().clone()).unwrap(), Some(name()));
        assert!(server.is_empty(), "released when the call returns");
        assert_eq!(lock.run_timeout(HANG, |guard| guard.is_held()).unwrap(), Some(true));
        assert!(server.is_empty(), "released when the call returns");
        let lose = |guard: &Guard| {
            server.expire_all();
            eventually("the loss is reported", || !guard.is_held());
        };
        let finished = lock.try_run(lose).unwrap_err();
        assert!(matches!(finished, RunError::Finished { .. }), "{finished:?}");
    });
}

/// Many times, because a release in the background may be as fast.
#[test]
fn set_is_released_when_its_work_returns() {
    in_time(|| {
        let server = MemoryServer::new();
        let set = client(&server).lock_all(["a", "b"]).unwrap();
        for round in 0..100 {
            assert_eq!(set.run(|guard| guard.tokens().len()).unwrap(), 2);
            assert!(server.is_empty(), "released when the call returns, in round {round}");
        }
    });
}

/// As often as for a set, for the same reason.
#[test]
fn lock_is_released_when_its_work_returns() {
    in_time(|| {
        let server = MemoryServer::new();
        let lock = client(&server).lock(NAME).unwrap();
        for round in 0..100 {
            assert!(lock.run(Guard::is_held).unwrap());
            assert!(server.is_empty(), "released when the call returns, in round {round}");
        }
    });
}

#[test]
fn owner_re_enters_its_blocking_lock_and_set() {
    in_time(|| {
        let (client, owner) = (client(&MemoryServer::new()), Owner::new());
        let outer = client.lock("a").unwrap().acquire().unwrap();
        assert!(client.lock("a").unwrap().reentrant(&owner).try_acquire().unwrap().is_none());
        outer.release().unwrap();
        let lock = client.lock("a").unwrap().reentrant(&owner);
        let outer = lock.acquire().unwrap();
        assert_eq!(lock.try_acquire().unwrap().map(|inner| inner.token()), Some(outer.token()));
        let set = client.lock_all(["a", "b"]).unwrap().reentrant(&owner);
        let inner = set.try_acquire().unwrap().and_then(|inner| inner.token("a"));
        assert_eq!(inner, Some(outer.token()));
    });
}

#[test]
fn longest_hold_of_a_blocking_lock_and_set_bounds_what_remains() {
    in_time(|| {
        let builder = LockClient::builder(MemoryServer::new().backend()).ttl(HANG * 20);
        let client = builder.build_blocking().unwrap();
        let guard = client.lock("a").unwrap().max_hold(HANG).acquire().unwrap();
        let set = client.lock_all(["b", "c"]).unwrap().max_hold(HANG).acquire().unwrap();
        assert!(guard.remaining() <= HANG && set.remaining() <= HANG);
    });
}

#[test]
fn blocking_set_waits_for_a_lock_that_is_held() {
    in_time(|| {
        let server = MemoryServer::new();
        let client = client(&server);
        let (set, holder) =
            (client.lock_all(["a", "b"]).unwrap(), client.lock("b").unwrap().acquire().unwrap());
        assert!(set.try_acquire().unwrap().is_none());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| set.acquire_timeout(HANG).unwrap().is_some());
            eventually("it waits", || server.inspect(&LockName::new("b").unwrap()).waiters.len() == 1);
            // It stays, however long the lock is held.
            thread::sleep(Duration::from_millis(50));
            holder.release().unwrap();
            assert!(waiting.join().unwrap());
        });
    });
}

#[test]
fn operators_list_and_break_locks() {
    in_time(|| {
        let server = MemoryServer::new();
        let (holding, operator) = (client(&server), client(&server));
        let guard = holding.lock(NAME).unwrap().acquire().unwrap();
        let other = holding.lock("another").unwrap().acquire().unwrap();
        let mut listing = operator.list("orders/");
        let page = listing.next_page().unwrap().unwrap();
        assert_eq!(page.into_iter().map(|lock| lock.name).collect::<Vec<_>>(), [Some(name())]);
        assert!(listing.next_page().unwrap().is_none());
        let holder = operator.inspect(NAME).unwrap().holder.unwrap();
        assert!(operator.break_lock(NAME, &holder).unwrap());
        eventually("the loss is reported", || !guard.is_held());
        assert!(!operator.break_lock(NAME, &holder).unwrap());
        assert!(other.is_held());
    });
}

#[test]
fn threads_acquire_sets_in_any_order() {
    in_time(|| {
        let client = client(&MemoryServer::new());
        thread::scope(|scope| {
            for names in [["a", "b"], ["b", "a"], ["c", "a"], ["b", "c"]] {
                let set = client.lock_all(names).unwrap();
                scope.spawn(move || {
                    for _ in 0..100 {
                        let guard = set.acquire().unwrap();
                        assert_eq!(guard.tokens().len(), 2);
                        guard.release().unwrap();
                    }
                });
            }
        });
        let all = |set: SetGuard| set.token("a") > None && set.is_held();
        assert!(client.lock_all(["a", "b", "c"]).unwrap().try_acquire().unwrap().is_some_and(all));
        client.drain(HANG).unwrap();
    });
}
