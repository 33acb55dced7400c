//! Lists of locks: their pages, and what a failed request does to them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Error, ErrorKind, Listing, LockClient, LockGuard, LockName, Result,
    backend::{Admin, Backend, BackendInfo, Inspection, ListedLock, Page, Session},
    limits::LISTED_PER_PAGE,
    memory::{MemoryBackend, MemoryServer},
};

use crate::common::{TTL, client, eventually, kind, settle};

/// A request for a page: prefix, cursor, limit.
type Asked = (String, Option<String>, usize);

/// A backend whose pages a test has written.
#[derive(Clone, Debug)]
struct Pages {
    backend: MemoryBackend,
    /// `None` is not answered.
    answers: Arc<Mutex<VecDeque<Option<Result<Page>>>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Pages {
    async fn listing(answers: impl IntoIterator<Item = Option<Result<Page>>>) -> (Self, Listing) {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect()));
        let pages = Self { backend: MemoryServer::new().backend(), answers, asked: Arc::default() };
        let client = LockClient::builder(pages.clone()).ttl(TTL).clock(Clock::tokio()).build().await.unwrap();
        (pages, client.list("jobs/"))
    }

    /// Returns the cursors of the requests so far.
    fn cursors(&self) -> Vec<Option<String>> {
        let asked = self.asked.lock().unwrap();
        assert!(asked.iter().all(|(prefix, _, limit)| prefix == "jobs/" && *limit == LISTED_PER_PAGE));
        asked.iter().map(|(_, after, _)| after.clone()).collect()
    }
}

#[async_trait]
impl Backend for Pages {
    fn info(&self) -> BackendInfo {
        self.backend.info()
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        self.backend.open_session(ttl, clock).await
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

#[async_trait]
impl Admin for Pages {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.backend.inspect(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.asked.lock().unwrap().push((prefix.to_owned(), after.map(str::to_owned), limit));
        let answer = self.answers.lock().unwrap().pop_front();
        match answer.expect("no page is asked for after the last one") {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

fn page(names: &[&str], next: Option<&str>) -> Option<Result<Page>> {
    let listed = |name: &&str| ListedLock::new(Some(LockName::new(name).unwrap()), *name);
    Some(Ok(Page::new(names.iter().map(listed).collect(), next.map(str::to_owned))))
}

fn cursors<const N: usize>(expected: [&str; N]) -> Vec<Option<String>> {
    expected.iter().map(|cursor| (!cursor.is_empty()).then(|| (*cursor).to_owned())).collect()
}

/// Returns the names of all pages.
async fn names(mut listing: Listing) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(page) = listing.next_page().await.unwrap() {
        names.extend(page.into_iter().map(|lock| lock.name.unwrap().to_string()));
    }
    names
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn pages_follow_each_other_also_empty_ones() {
    let answers = [page(&["jobs/a", "jobs/b"], Some("one")), page(&[], Some("two")), page(&["jobs/c"], None)];
    let (pages, mut listing) = Pages::listing(answers).await;
    let mut seen = Vec::new();
    while let Some(page) = listing.next_page().await.unwrap() {
        seen.push(page.len());
    }
    assert_eq!(seen, [2, 0, 1]);
    assert_eq!(pages.cursors(), cursors(["", "one", "two"]));
    for _ in 0..3 {
        assert_eq!(listing.next_page().await.unwrap(), None, "the list is over, without a request");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn page_that_failed_or_was_dropped_is_asked_for_again() {
    let failed = || Some(Err(Error::new(ErrorKind::Unavailable, "list locks")));
    let answers =
        [failed(), page(&["jobs/a"], Some("one")), failed(), None, page(&[], Some("two")), page(&[], None)];
    let (pages, mut listing) = Pages::listing(answers).await;
    assert_eq!(kind(listing.next_page().await), ErrorKind::Unavailable);
    assert_eq!(listing.next_page().await.unwrap().map(|page| page.len()), Some(1));
    assert_eq!(kind(listing.next_page().await), ErrorKind::Unavailable);
    let unanswered = tokio::time::timeout(TTL, listing.next_page()).await;
    assert!(unanswered.is_err(), "{unanswered:?}");
    assert!(listing.next_page().await.unwrap().is_some());
    assert!(listing.next_page().await.unwrap().is_some());
    assert_eq!(listing.next_page().await.unwrap(), None);
    assert_eq!(pages.cursors(), cursors(["", "", "one", "one", "one", "two"]));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn many_locks_are_listed_once_each_over_several_pages() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let mut expected: Vec<String> =
        (0..LISTED_PER_PAGE * 2 + 1).map(|number| format!("jobs/{number}")).collect();
    let mut guards: Vec<LockGuard> = Vec::new();
    for name in &expected {
        guards.push(client.lock(name).unwrap().acquire().await.unwrap());
    }
    let mut listing = client.list("jobs/");
    let mut sizes = Vec::new();
    while let Some(page) = listing.next_page().await.unwrap() {
        sizes.push(page.len());
    }
    assert_eq!(sizes, [LISTED_PER_PAGE, LISTED_PER_PAGE, 1]);
    expected.sort();
    assert_eq!(names(client.list("jobs/")).await, expected);
    drop(guards);
    eventually(TTL, "all are released", || server.is_empty()).await;
    assert_eq!(names(client.list("jobs/")).await, [""; 0]);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn prefix_is_a_text_and_waited_for_locks_are_listed_once() {
    let server = MemoryServer::new();
    let (one, other) = (client(&server).await, client(&server).await);
    let mut guards = Vec::new();
    for name in ["a", "a/b", "a.b", "ab", "b/a", "A", "a/ä🔒", " a"] {
        guards.push(one.lock(name).unwrap().acquire().await.unwrap());
    }
    let waiting = other.lock("a/b").unwrap();
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    settle().await;
    assert_eq!(names(one.list("a")).await, ["a", "a.b", "a/b", "a/ä🔒", "ab"]);
    assert_eq!(names(one.list("a/")).await, ["a/b", "a/ä🔒"]);
    assert_eq!(names(one.list("a/ä")).await, ["a/ä🔒"]);
    assert_eq!(names(one.list("c")).await, [""; 0]);
    assert_eq!(names(one.list("")).await.len(), guards.len());
    // The holder leaves, and the lock is still waited for: its waiter holds it now.
    drop(guards);
    let guard = waiter.await.unwrap().unwrap();
    settle().await;
    assert_eq!(names(one.list("")).await, ["a/b"]);
    guard.release().await.unwrap();
    assert_eq!(names(one.list("")).await, [""; 0]);
}
