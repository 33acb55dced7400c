//! Every operation, tried once on a lock of its own.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use lockkit::{Error, ErrorKind, FencingToken, LockClient, LockGuard, Metadata, Result, backend::ListedLock};
use tokio::time::{sleep, timeout};

use super::report::{Level, Report};
use crate::describe::is_of;

/// Time limit of one operation.
pub(super) const STEP_MAX: Duration = Duration::from_secs(10);

/// Longest wait until an inspection shows a waiter: not every store shows them.
const SEEN_MAX: Duration = Duration::from_secs(2);

/// Pause between two inspections.
const SEEN_PAUSE: Duration = Duration::from_millis(20);

/// A slower handoff was found by the waiter's own check, not by a notification.
const HANDOFF_SLOW: Duration = Duration::from_secs(1);

/// What to do about a fault that may have come from another program meanwhile.
const EXAMINE_AGAIN: &str = "run `lockkit doctor` again";

/// Tries everything but a break; returns a guard of `other`, which holds the lock then.
pub(super) async fn try_all(
    one: &LockClient,
    other: &LockClient,
    name: &str,
    report: &mut Report,
) -> Option<LockGuard> {
    let acquired = step("acquire", acquire(one, name)).await;
    let guard = match acquired {
        Ok(Some(guard)) => {
            report.fine("acquire", format!("granted with token {}", guard.token()));
            Some(guard)
        }
        Ok(None) => {
            let what = "the new lock of this examination is already held";
            report.add("acquire", Level::Fault, what, EXAMINE_AGAIN);
            None
        }
        Err(error) => {
            add_error(report, "acquire", &error);
            None
        }
    };
    inspect(one, name, guard.is_some(), report).await;
    list(one, name, guard.is_some(), report).await;
    hand_over(one, guard?, other, report).await
}

async fn acquire(client: &LockClient, name: &str) -> Result<Option<LockGuard>> {
    client.lock(name)?.try_acquire().await
}

async fn inspect(client: &LockClient, name: &str, is_held: bool, report: &mut Report) {
    match step("inspect", client.inspect(name)).await {
        Ok(found) if found.holder.as_ref().is_some_and(is_own) == is_held => {
            report.fine("inspect", "holder and waiters can be shown");
        }
        Ok(found) => {
            let what = format!("shows another holder than the lock has: {:?}", found.holder);
            let remedy = "run `lockkit doctor` again; check that all servers of the URL belong to one store";
            report.add("inspect", Level::Fault, what, remedy);
        }
        Err(error) => add_error(report, "inspect", &error),
    }
}

async fn list(client: &LockClient, name: &str, is_held: bool, report: &mut Report) {
    let mut listing = client.list(name);
    match step("list locks", is_listed(name, async || listing.next_page().await)).await {
        Ok(found) if found == is_held => report.fine("list", "locks can be listed"),
        Ok(_) => report.add("list", Level::Fault, "the list lacks a lock that is held", EXAMINE_AGAIN),
        Err(error) => add_error(report, "list", &error),
    }
}

/// Whether a lock is on one of the pages of a listing.
async fn is_listed(
    name: &str,
    mut next_page: impl AsyncFnMut() -> Result<Option<Vec<ListedLock>>>,
) -> Result<bool> {
    while let Some(page) = next_page().await? {
        if page.iter().any(|lock| lock.name.as_ref().is_some_and(|listed| listed.as_str() == name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Hands the lock over to a waiter.
async fn hand_over(
    one: &LockClient,
    guard: LockGuard,
    other: &LockClient,
    report: &mut Report,
) -> Option<LockGuard> {
    let (name, token) = (guard.name().clone(), guard.token());
    let waiting = async {
        let waited = step("wait", async { other.lock(name.as_str())?.acquire_timeout(STEP_MAX).await }).await;
        (waited, Instant::now())
    };
    let releasing = async {
        let waits = async {
            // An error is found by its own check.
            while one.inspect(name.as_str()).await.is_ok_and(|found| found.waiters.is_empty()) {
                sleep(SEEN_PAUSE).await;
            }
        };
        let _ = timeout(SEEN_MAX, waits).await;
        let begin = Instant::now();
        (begin, guard.release().await)
    };
    let ((waited, granted), (begin, released)) = tokio::join!(waiting, releasing);
    match released {
        Ok(()) => report.fine("release", "confirmed"),
        Err(error) => add_error(report, "release", &error),
    }
    let took = granted.saturating_duration_since(begin);
    match waited {
        Ok(Some(next)) => {
            let (level, what, remedy) = judge(token, next.token(), took);
            report.add("hand over", level, what, remedy);
            Some(next)
        }
        Ok(None) => {
            let what = format!("a waiter did not get the lock within {STEP_MAX:?}");
            report.add("hand over", Level::Fault, what, "check whether the store answers others in time");
            None
        }
        Err(error) => {
            add_error(report, "hand over", &error);
            None
        }
    }
}

/// Judges a handoff: the tokens before and after it, and how long it took.
fn judge(token: FencingToken, next: FencingToken, took: Duration) -> (Level, String, &'static str) {
    if next <= token {
        let what = format!("token {next} after token {token}: tokens must rise");
        return (Level::Fault, what, "do not rely on tokens here, and report this");
    }
    let what = format!("a waiter got the lock {took:.1?} after its release began");
    if took > HANDOFF_SLOW {
        let remedy = "notifications may not arrive: check proxies, and the rights to watch or subscribe";
        return (Level::Warning, what, remedy);
    }
    (Level::Fine, what, "")
}

/// Breaks the lock of the guard.
pub(super) async fn try_break(client: &LockClient, guard: LockGuard, report: &mut Report) {
    if !client.info().powers.break_lock {
        report.add("break", Level::Note, "this store cannot take a lock away from its holder", "");
        return;
    }
    let name = guard.name().clone();
    let breaking = async {
        match client.inspect(name.as_str()).await?.holder {
            Some(holder) => client.break_lock(name.as_str(), &holder).await,
            None => Ok(false),
        }
    };
    let begin = Instant::now();
    match step("break", breaking).await {
        Ok(true) => match timeout(client.ttl().min(STEP_MAX), guard.lost()).await {
            Ok(_) => {
                let took = begin.elapsed();
                report.fine("break", format!("its holder learned of the loss after {took:.1?}"));
            }
            Err(_) => {
                report.add("break", Level::Fault, "its holder does not learn of the loss", EXAMINE_AGAIN);
            }
        },
        Ok(false) => report.add("break", Level::Fault, "a lock that is held was not broken", EXAMINE_AGAIN),
        Err(error) => add_error(report, "break", &error),
    }
}

/// Awaits an operation for at most [`STEP_MAX`] and a little more, for those that have this time limit themselves.
async fn step<T>(operation: &'static str, step: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(STEP_MAX + SEEN_MAX, step).await {
        Ok(done) => done,
        Err(_) => Err(Error::new(ErrorKind::Unavailable, operation).with_message("no answer in time")),
    }
}

/// Whether a contender is of this process.
fn is_own(contender: &lockkit::backend::Contender) -> bool {
    is_of(contender, &Metadata::of_this_process(None))
}

/// Adds an operation that failed.
pub(super) fn add_error(report: &mut Report, check: &'static str, error: &Error) {
    let (level, remedy) = match error.kind() {
        ErrorKind::Unsupported => (Level::Note, ""),
        ErrorKind::Denied => (Level::Fault, "give the user of the URL this right for the keys of the locks"),
        ErrorKind::Unavailable => {
            (Level::Fault, "the store did not serve this in time: check its load and its log")
        }
        _ => (Level::Fault, "see what the error names"),
    };
    report.add(check, level, format!("{error:#}"), remedy);
}

#[cfg(test)]
mod tests {
    use lockkit::{Clock, LockName, backend::BackendUrl, memory::MemoryServer};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lock_that_is_held_and_neither_shown_nor_broken_is_a_fault() {
        let server = MemoryServer::new();
        let client = LockClient::builder(server.backend()).clock(Clock::tokio()).build().await.unwrap();
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        server.delete_entries(guard.name());
        let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
        inspect(&client, "a", true, &mut report).await;
        list(&client, "a", true, &mut report).await;
        try_break(&client, guard, &mut report).await;
        let text = report.as_text();
        for fault in ["inspect: shows another", "list: the list lacks", "break: a lock that is held was"] {
            assert!(text.contains(&format!("fault    {fault}")), "{fault}: {text}");
        }
    }

    #[test]
    fn handoff_with_a_token_that_does_not_rise_or_that_is_slow_is_found() {
        let level = |next, took| judge(FencingToken::new(7), FencingToken::new(next), took).0;
        assert_eq!(
            [6, 7, 8].map(|next| level(next, HANDOFF_SLOW)),
            [Level::Fault, Level::Fault, Level::Fine]
        );
        assert_eq!(level(8, HANDOFF_SLOW * 2), Level::Warning);
        assert_eq!(level(7, HANDOFF_SLOW * 2), Level::Fault);
    }

    #[tokio::test]
    async fn lock_is_looked_for_on_every_page() {
        let lock = |name: &str| ListedLock::new(Some(LockName::new(name).unwrap()), name);
        for (pages, expected) in [
            (vec![vec![], vec![lock("ab"), lock("a")]], true),
            (vec![vec![lock("ab")], vec![]], false),
            (vec![], false),
        ] {
            let mut pages = pages.into_iter();
            let found = is_listed("a", async || Ok::<_, Error>(pages.next())).await.unwrap();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn failed_operation_is_a_fault_with_a_remedy_unless_the_store_lacks_it() {
        for (kind, level, remedy) in [
            (ErrorKind::Unsupported, "note ", ""),
            (ErrorKind::Denied, "fault", "give the user of the URL this right"),
            (ErrorKind::Unavailable, "fault", "check its load"),
            (ErrorKind::Lost, "fault", "see what the error names"),
        ] {
            let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
            add_error(&mut report, "list", &Error::new(kind, "list locks"));
            let text = report.as_text();
            let is_named = text.contains(&format!("\n{level}    list: "));
            assert!(is_named && text.contains(remedy), "{kind:?}: {text}");
            assert_eq!(text.contains("\n         -> "), !remedy.is_empty(), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn operation_without_an_answer_ends_after_its_own_time_limit() {
        let begin = tokio::time::Instant::now();
        let error = step("inspect", std::future::pending::<Result<()>>()).await.unwrap_err();
        let took = begin.elapsed();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("inspect"), "{error}");
        assert!(took > STEP_MAX && took < STEP_MAX * 2, "{took:?}");
    }
}
