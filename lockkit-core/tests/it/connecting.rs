//! A client that waits for its store: until a time limit, or in the background.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    ClientBuilder, ClientOptions, Clock, Error, ErrorKind, LockClient, Result, Status,
    backend::{Admin, Backend, BackendInfo, BackendUrl, Lifetime, Session},
    limits::TRY_ANSWER_MAX,
    memory::{MemoryBackend, MemoryServer},
};
use tokio::time::{Instant, sleep};

use crate::{
    common::{NAME, TTL, eventually, in_time, kind, name, settle},
    scripted::Scripted,
};

/// What timers on a paused clock may add.
const SLACK: Duration = Duration::from_millis(10);

/// Returns the error of each attempt to open a session, counted from 1.
type Failures = fn(u64) -> Option<ErrorKind>;

/// A memory server whose sessions cannot be opened at first.
#[derive(Clone, Debug)]
pub(crate) struct Starting {
    backend: MemoryBackend,
    failures: Failures,
    attempts: Arc<AtomicU64>,
}

impl Starting {
    pub(crate) fn new(server: &MemoryServer, failures: Failures) -> Self {
        Self { backend: server.backend(), failures, attempts: Arc::default() }
    }

    pub(crate) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Backend for Starting {
    fn info(&self) -> BackendInfo {
        self.backend.info()
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst) + 1;
        match (self.failures)(attempt) {
            Some(kind) => Err(Error::new(kind, "open session").with_message(format!("attempt {attempt}"))),
            None => self.backend.open_session(ttl, clock).await,
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.backend.admin()
    }
}

fn never(_: u64) -> Option<ErrorKind> {
    Some(ErrorKind::Unavailable)
}

fn after_five(attempt: u64) -> Option<ErrorKind> {
    (attempt <= 5).then_some(ErrorKind::Unavailable)
}

fn denied_after_two(attempt: u64) -> Option<ErrorKind> {
    Some(if attempt <= 2 { ErrorKind::Unavailable } else { ErrorKind::Denied })
}

pub(crate) fn builder(backend: impl Backend) -> ClientBuilder {
    LockClient::builder(backend).ttl(TTL).clock(Clock::tokio())
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn build_waits_for_a_server_that_answers_later() {
    let server = MemoryServer::new();
    server.hold_requests();
    let build = tokio::spawn(builder(server.backend()).connect_timeout(TTL * 10).build());
    sleep(TTL * 2).await;
    assert!(!build.is_finished(), "the store has not answered");
    server.deliver_requests();
    let client = in_time(build).await.unwrap().unwrap();
    assert_eq!(client.status().current(), Status::Connected);
    client.lock(NAME).unwrap().acquire().await.unwrap().release().await.unwrap();
    eventually(TTL + SLACK, "attempts that were not answered in time leave no session", || {
        server.sessions() == 1
    })
    .await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn build_tries_again_after_growing_pauses() {
    let starting = Starting::new(&MemoryServer::new(), after_five);
    let start = Instant::now();
    let client = builder(starting.clone()).connect_timeout(TTL * 10).build().await.unwrap();
    assert_eq!(starting.attempts(), 6);
    assert_eq!(client.status().current(), Status::Connected);
    let took = start.elapsed();
    // 50 ms, doubled four times, with jitter.
    assert!((Duration::from_millis(500)..Duration::from_secs(4)).contains(&took), "{took:?}");

    let starting = Starting::new(&MemoryServer::new(), never);
    let limit = Duration::from_secs(50);
    assert_eq!(kind(builder(starting.clone()).connect_timeout(limit).build().await), ErrorKind::Unavailable);
    assert!((20..80).contains(&starting.attempts()), "{} attempts in {limit:?}", starting.attempts());
}

/// The limit is beyond what the clock can show.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn build_without_a_limit_tries_until_the_store_answers() {
    let starting = Starting::new(&MemoryServer::new(), after_five);
    let client = in_time(builder(starting.clone()).connect_timeout(Duration::MAX).build()).await.unwrap();
    assert_eq!((starting.attempts(), client.status().current()), (6, Status::Connected));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn one_attempt_is_made_by_default() {
    let starting = Starting::new(&MemoryServer::new(), after_five);
    let error = builder(starting.clone()).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    sleep(TTL).await;
    assert_eq!(starting.attempts(), 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn error_that_no_retry_mends_is_returned_at_once() {
    let server = MemoryServer::new();
    let starting = Starting::new(&server, denied_after_two);
    let start = Instant::now();
    let error = in_time(builder(starting.clone()).connect_timeout(TTL * 100).build()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("attempt 3"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    sleep(TTL).await;
    assert_eq!(starting.attempts(), 3);
}

/// As while a password is being changed.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn refusal_of_a_later_session_does_not_end_its_client() {
    let server = MemoryServer::new();
    let starting = Starting::new(&server, |attempt| (attempt == 2).then_some(ErrorKind::Denied));
    let client = builder(starting.clone()).build().await.unwrap();
    server.expire_all();
    eventually(TTL * 2, "a third attempt", || starting.attempts() == 3).await;
    eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn last_error_is_returned_at_the_limit() {
    let starting = Starting::new(&MemoryServer::new(), never);
    let (start, limit) = (Instant::now(), Duration::from_secs(3));
    let error = in_time(builder(starting.clone()).connect_timeout(limit).build()).await.unwrap_err();
    let took = start.elapsed();
    assert!((limit..=limit + SLACK).contains(&took), "{took:?}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let last = format!("attempt {}", starting.attempts());
    assert!(starting.attempts() > 1 && error.to_string().contains(&last), "{error} instead of {last}");
    sleep(TTL * 10).await;
    assert!(last.ends_with(&starting.attempts().to_string()), "attempts continue after the limit");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn silent_store_is_given_up_at_the_limit_and_keeps_no_session() {
    let server = MemoryServer::new();
    server.hold_requests();
    // Shorter than the request timeout: no attempt has failed yet.
    let (start, limit) = (Instant::now(), TTL / 12);
    let error = in_time(builder(server.backend()).connect_timeout(limit).build()).await.unwrap_err();
    assert!(start.elapsed() <= limit + SLACK, "{:?}", start.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("within the connect timeout"), "{error}");
    server.deliver_requests();
    // The session that the late answer opens is closed, and does not wait for its ttl.
    eventually(SLACK, "no session is left", || server.sessions() == 0).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_that_opens_too_late_again_and_again_is_reported_at_the_limit() {
    let slow = Scripted::new(Lifetime::Session);
    slow.script.open_takes_ms.store(TTL.as_millis() as u64, Ordering::SeqCst);
    slow.script.silent.store(true, Ordering::SeqCst);
    let error = in_time(builder(slow.clone()).connect_timeout(TTL * 4).build()).await.unwrap_err();
    assert!(error.to_string().contains("renew"), "{error}");
    assert!(slow.script.opened.load(Ordering::SeqCst) > 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn build_dropped_while_it_waits_leaves_no_session_and_no_attempts() {
    let server = MemoryServer::new();
    server.hold_requests();
    let build = tokio::spawn(builder(server.backend()).connect_timeout(TTL * 10).build());
    settle().await;
    assert_eq!(server.held_requests(), 1);
    build.abort();
    settle().await;
    server.deliver_requests();
    eventually(SLACK, "the session is closed once it is open", || server.sessions() == 0).await;

    let starting = Starting::new(&server, never);
    let build = tokio::spawn(builder(starting.clone()).connect_timeout(TTL * 10).build());
    sleep(TTL).await;
    build.abort();
    settle().await;
    let attempts = starting.attempts();
    sleep(TTL * 10).await;
    assert_eq!(starting.attempts(), attempts);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn connect_timeout_is_an_option_of_every_url() {
    let mut url = BackendUrl::parse("redis://localhost?connect_timeout=90s&ttl=7s").unwrap();
    let options = ClientOptions::take_from(&mut url).unwrap();
    assert_eq!(options.connect_timeout, Some(Duration::from_secs(90)));
    url.finish().expect("no option is left for the backend");
    let starting = Starting::new(&MemoryServer::new(), after_five);
    let client = builder(starting.clone()).options(options).build().await.unwrap();
    assert_eq!(client.ttl(), Duration::from_secs(7));

    let mut url = BackendUrl::parse("redis://localhost?connect_timeout=soon").unwrap();
    assert_eq!(kind(ClientOptions::take_from(&mut url)), ErrorKind::InvalidConfig);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn options_that_are_absent_leave_those_of_the_builder() {
    let starting = Starting::new(&MemoryServer::new(), after_five);
    let builder = builder(starting.clone()).label("kept").connect_timeout(TTL * 10);
    let client = in_time(builder.options(ClientOptions::default()).build()).await.unwrap();
    assert_eq!((client.ttl(), starting.attempts()), (TTL, 6));
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let holder = client.inspect(NAME).await.unwrap().holder.unwrap();
    assert_eq!(holder.metadata.unwrap().label.as_deref(), Some("kept"));
    drop(guard);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lazy_client_is_granted_a_lock_once_the_store_answers() {
    let server = MemoryServer::new();
    server.hold_requests();
    let start = Instant::now();
    let client = in_time(builder(server.backend()).build_lazy()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "nothing was waited for");
    let mut status = client.status();
    assert_eq!(status.current(), Status::Lost);
    let lock = client.lock(NAME).unwrap();
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    sleep(TTL * 3).await;
    assert!(!waiter.is_finished());
    server.deliver_requests();
    assert!(in_time(waiter).await.unwrap().unwrap().is_held());
    assert_eq!(in_time(status.changed()).await, Status::Connected);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn calls_with_a_time_limit_return_in_time_while_a_lazy_client_waits() {
    let client = builder(Starting::new(&MemoryServer::new(), never)).build_lazy().await.unwrap();
    let lock = client.lock(NAME).unwrap();
    let (start, limit) = (Instant::now(), Duration::from_millis(300));
    assert_eq!(kind(lock.acquire_timeout(limit).await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= limit + SLACK, "{:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(kind(lock.try_acquire().await), ErrorKind::Unavailable);
    assert_eq!(kind(client.election(NAME).unwrap().leader().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= (TRY_ANSWER_MAX + SLACK) * 2, "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn operator_needs_no_session() {
    let server = MemoryServer::new();
    let held = crate::common::lock_of_new_client(&server).await.acquire().await.unwrap();
    let operator = builder(Starting::new(&server, never)).build_lazy().await.unwrap();
    assert_eq!(operator.list("").next_page().await.unwrap().map(|page| page.len()), Some(1));
    let holder = operator.inspect(NAME).await.unwrap().holder.unwrap();
    assert!(operator.break_lock(NAME, &holder).await.unwrap());
    in_time(held.lost()).await;
    operator.close().await.unwrap();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn every_call_of_a_refused_lazy_client_returns_the_refusal() {
    let server = MemoryServer::new();
    let client = builder(Starting::new(&server, denied_after_two)).build_lazy().await.unwrap();
    let (lock, election) = (client.lock(NAME).unwrap(), client.election(NAME).unwrap());
    let once = client.once_per(NAME, TTL).unwrap();
    let set = client.lock_all(["a", "b"]).unwrap();
    let mut observer = election.observe();
    // Begun while the store is waited for.
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.map(drop) }
    });
    let mut status = client.status();
    assert_eq!(in_time(status.changed()).await, Status::Closed);
    let errors = [
        in_time(waiter).await.unwrap().unwrap_err(),
        in_time(observer.next()).await.unwrap().unwrap_err(),
        in_time(lock.acquire()).await.unwrap_err(),
        in_time(lock.try_acquire()).await.unwrap_err(),
        in_time(lock.acquire_timeout(TTL)).await.unwrap_err(),
        in_time(election.campaign("me")).await.unwrap_err(),
        in_time(election.leader()).await.unwrap_err(),
        in_time(election.observe().next()).await.unwrap().unwrap_err(),
        in_time(once.begin()).await.unwrap_err(),
        in_time(once.begin_timeout(TTL)).await.unwrap_err(),
        in_time(set.acquire()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("attempt 3"), "{error}");
        assert!(error.lock().is_some(), "{error}");
    }
    in_time(client.drain(TTL)).await.unwrap();
    in_time(client.close()).await.expect("nothing was opened");
    assert_eq!(server.sessions(), 0);
}

/// The thread of the client ends with the refusal.
#[tokio::test(crate = "crate::checked")]
async fn refused_client_on_its_own_thread_returns_the_refusal_to_operators() {
    let backend = Starting::new(&MemoryServer::new(), denied_after_two);
    let client = LockClient::builder(backend).own_thread().build_lazy().await.unwrap();
    let mut status = client.status();
    let refused = async {
        while status.changed().await != Status::Closed {}
        loop {
            // Until the thread has ended, the backend answers.
            if let Err(error) = client.inspect(NAME).await {
                return error;
            }
            tokio::task::yield_now().await;
        }
    };
    let error = in_time(refused).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    client.close().await.unwrap();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lazy_client_that_is_dropped_before_its_session_opens_leaves_none() {
    let server = MemoryServer::new();
    server.hold_requests();
    let client = builder(server.backend()).build_lazy().await.unwrap();
    settle().await;
    assert_eq!(server.held_requests(), 1);
    drop(client);
    settle().await;
    server.deliver_requests();
    eventually(SLACK, "the session is closed once it is open", || server.sessions() == 0).await;

    let starting = Starting::new(&server, never);
    let client = builder(starting.clone()).build_lazy().await.unwrap();
    sleep(TTL).await;
    drop(client);
    settle().await;
    let attempts = starting.attempts();
    sleep(TTL * 10).await;
    assert_eq!(starting.attempts(), attempts);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lazy_client_that_is_closed_while_it_waits_ends_its_callers() {
    let server = MemoryServer::new();
    let client = builder(Starting::new(&server, never)).build_lazy().await.unwrap();
    let lock = client.lock(NAME).unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    settle().await;
    let start = Instant::now();
    client.close().await.unwrap();
    assert!(start.elapsed() <= SLACK, "nothing was open: {:?}", start.elapsed());
    assert_eq!(kind(in_time(waiter).await.unwrap()), ErrorKind::Closed);
    assert!(server.inspect(&name()).holder.is_none());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn invalid_configuration_of_a_lazy_client_is_reported_at_once() {
    let starting = Starting::new(&MemoryServer::new(), never);
    let built = LockClient::builder(starting.clone()).ttl(Duration::ZERO).build_lazy().await;
    assert_eq!(kind(built), ErrorKind::InvalidConfig);
    assert_eq!(starting.attempts(), 0);
}
