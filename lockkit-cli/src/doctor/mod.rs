//! `lockkit doctor`: examines a store with two clients of its own.
//!
//! | what | how |
//! |---|---|
//! | reached, set up well | two sessions are opened; what the library warns about is a finding |
//! | ttl | what the URL asks for, against the bounds of the store and what it grants |
//! | rights | [`rights`]: each operation is tried on a lock of its own |
//! | speed, renewals, clocks | [`health`]: measured for a few seconds while a lock is held |
//!
//! The examination has a short ttl, to see some renewals. What it measures is judged by the ttl that the URL asks for.
//!
//! Nothing is left behind but what every use of the store leaves, such as counters of tokens.

mod health;
mod report;
mod rights;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lockkit::{ClientOptions, LockClient, backend::BackendUrl, limits::TTL_DEFAULT};

use self::report::{Level, Report};
use crate::{
    args::{DoctorArguments, StoreArguments},
    configured_store::ConfiguredStore,
    describe::seconds,
    exit::{DENIED, Failure, UNAVAILABLE, print},
    log::Collector,
    store::Store,
};

/// Longest ttl of the examination: with three renewals per ttl, some happen while it lasts.
const TTL_EXAMINED_MAX: Duration = Duration::from_secs(6);

/// Examines the store; returns the exit status of the verdict.
pub(crate) async fn doctor(arguments: DoctorArguments, collector: &Collector) -> Result<u8, Failure> {
    let DoctorArguments { url, local, password_file, json } = arguments;
    let store = Store::from(&StoreArguments { backend: url, local, password_file })?;
    let asked = asked_ttl(&store)?;
    let configured = ConfiguredStore::to(&store, Some(asked.min(TTL_EXAMINED_MAX)), Some("lockkit doctor"))?;
    let mut report = Report::new(&BackendUrl::parse(store.url())?);
    if let Some(clients) = connect(async || configured.open().await, &mut report).await {
        examine_and_close(clients, asked, collector, &mut report).await;
    } else {
        add_warnings(collector, &mut report);
    }
    print(&if json { report.as_json() } else { report.as_text() })?;
    Ok(report.status())
}

/// Returns the ttl that other commands would ask for.
fn asked_ttl(store: &Store) -> Result<Duration, Failure> {
    let in_url = ClientOptions::take_from(&mut BackendUrl::parse(store.url())?)?;
    Ok(in_url.ttl.or(store.ttl()).unwrap_or(TTL_DEFAULT))
}

/// Opens two sessions, or reports why it cannot.
async fn connect(
    open: impl AsyncFn() -> Result<LockClient, Failure>,
    report: &mut Report,
) -> Option<[LockClient; 2]> {
    let begin = Instant::now();
    let one = match open().await {
        Ok(client) => client,
        Err(failure) => {
            let remedy = match failure.status {
                UNAVAILABLE => "check address and port, that the server runs, and firewalls on the way",
                DENIED => "check the user and the password, and what the user may do",
                _ => "correct what the error names",
            };
            report.add("reach", Level::Fault, failure.message, remedy);
            return None;
        }
    };
    report.fine("reach", format!("a session was opened in {:.1?}", begin.elapsed()));
    match open().await {
        Ok(other) => Some([one, other]),
        Err(failure) => {
            let remedy = "check how many connections the server allows";
            report.add("reach", Level::Fault, format!("a second session: {}", failure.message), remedy);
            let _ = one.close().await;
            None
        }
    }
}

fn check_ttl(client: &LockClient, asked: Duration, report: &mut Report) {
    let (info, granted) = (client.info(), client.ttl());
    if granted == Duration::MAX {
        report.fine("ttl", "locks end with their process, and have no ttl");
    } else if asked > info.ttl_max {
        let what = format!("a ttl of {asked:?} is longer than the longest one, {:?}", info.ttl_max);
        report.add("ttl", Level::Fault, what, "shorten the ttl");
    } else if granted > asked {
        let what = format!("the store grants no ttl below {granted:?}, and {asked:?} is asked for");
        report.add("ttl", Level::Warning, what, "expect that others wait that long for a dead holder");
    } else {
        report.fine(
            "ttl",
            format!("{asked:?}; the store allows {:?} to {}", info.ttl_min, seconds(info.ttl_max)),
        );
    }
}

/// Examines a store with two clients, and closes them: a session that is left would last for a ttl.
async fn examine_and_close(
    clients: [LockClient; 2],
    asked: Duration,
    collector: &Collector,
    report: &mut Report,
) {
    let [one, other] = &clients;
    check_ttl(one, asked, report);
    examine(one, other, asked, collector, report).await;
    for client in &clients {
        let _ = client.close().await;
    }
}

async fn examine(
    one: &LockClient,
    other: &LockClient,
    asked: Duration,
    collector: &Collector,
    report: &mut Report,
) {
    let held = rights::try_all(one, other, &scratch_name(), report).await;
    health::measure(one, &scratch_name(), asked, held.as_ref(), report).await;
    // Before the break, of which the library warns as well.
    add_warnings(collector, report);
    if let Some(guard) = held {
        rights::try_break(one, guard, report).await;
    }
}

/// Adds what the library warns about.
fn add_warnings(collector: &Collector, report: &mut Report) {
    for warning in collector.take() {
        report.add("set-up", Level::Warning, warning, "");
    }
}

/// Returns the name of a lock that nobody else uses, of characters that no store encodes.
fn scratch_name() -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    format!("lockkit-doctor-{}-{nanoseconds:x}-{number}", std::process::id())
}

#[cfg(test)]
mod tests {
    use lockkit::memory::MemoryServer;

    use super::*;
    use crate::exit::CONFIG;

    async fn client(server: &MemoryServer) -> LockClient {
        let builder = LockClient::builder(server.backend()).clock(lockkit::Clock::tokio());
        builder.ttl(TTL_EXAMINED_MAX).build().await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn first_session_does_not_stay_if_a_second_one_is_refused() {
        let server = MemoryServer::new();
        let open = async || match server.sessions() {
            0 => Ok(client(&server).await),
            _ => Err(Failure::new(UNAVAILABLE, "too many connections")),
        };
        let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
        assert!(connect(open, &mut report).await.is_none());
        assert_eq!(server.sessions(), 0);
        let text = report.as_text();
        assert!(report.status() == 2 && text.contains("a second session: too many connections"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn sound_store_is_fine() {
        let server = MemoryServer::new();
        let (one, other) = (client(&server).await, client(&server).await);
        let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
        check_ttl(&one, TTL_DEFAULT, &mut report);
        examine(&one, &other, TTL_DEFAULT, &Collector::default(), &mut report).await;
        let text = report.as_text();
        assert_eq!(report.status(), 0, "{text}");
        for check in
            ["ttl", "acquire", "inspect", "list", "release", "hand over", "renew", "break", "speed", "clock"]
        {
            assert!(text.contains(&format!("fine     {check}")), "{check}: {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn store_that_loses_a_lock_has_faults() {
        let server = MemoryServer::new();
        let (one, other) = (client(&server).await, client(&server).await);
        let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
        let forgetting = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            server.expire_all();
        };
        let collector = Collector::default();
        tokio::join!(examine(&one, &other, TTL_DEFAULT, &collector, &mut report), forgetting);
        assert!(report.status() == 2 && report.as_text().contains("fault    renew"), "{}", report.as_text());
    }

    #[tokio::test(start_paused = true)]
    async fn late_renewal_is_judged_by_the_ttl_that_is_asked_for() {
        for (asked, expected) in [(TTL_DEFAULT, "fine     renew"), (TTL_EXAMINED_MAX, "warning  renew")] {
            let server = MemoryServer::new();
            let (one, other) = (client(&server).await, client(&server).await);
            let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
            // The renewal that is due after two seconds comes more than a second late.
            let delay = async {
                tokio::time::sleep(Duration::from_millis(1_500)).await;
                server.hold_requests();
                tokio::time::sleep(Duration::from_millis(1_700)).await;
                server.deliver_requests();
            };
            let collector = Collector::default();
            tokio::join!(examine(&one, &other, asked, &collector, &mut report), delay);
            assert!(report.as_text().contains(expected), "{expected}: {}", report.as_text());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ttl_beyond_the_bounds_is_a_fault() {
        let client = client(&MemoryServer::new()).await;
        let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
        check_ttl(&client, client.info().ttl_max * 2, &mut report);
        assert_eq!(report.status(), 2);
        let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
        check_ttl(&client, Duration::from_secs(1), &mut report);
        assert!(report.status() == 1, "the examined client was granted more: {}", report.as_text());
    }

    #[tokio::test]
    async fn remedy_of_a_store_that_is_not_reached_depends_on_the_reason() {
        for (status, remedy) in [
            (UNAVAILABLE, "check address and port"),
            (DENIED, "check the user and the password"),
            (CONFIG, "correct what the error names"),
        ] {
            let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
            let open = async || Err::<LockClient, Failure>(Failure::new(status, "why"));
            assert!(connect(open, &mut report).await.is_none());
            let text = report.as_text();
            assert!(text.contains(&format!("fault    reach: why\n         -> {remedy}")), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_session_stays_behind_an_examination() {
        let server = MemoryServer::new();
        let clients = [client(&server).await, client(&server).await];
        let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
        examine_and_close(clients, TTL_DEFAULT, &Collector::default(), &mut report).await;
        assert_eq!(server.sessions(), 0);
        assert!(server.is_empty() && report.status() == 0, "{}", report.as_text());
    }

    #[tokio::test(start_paused = true)]
    async fn ttl_at_a_bound_is_fine() {
        let client = client(&MemoryServer::new()).await;
        for asked in [client.ttl(), client.info().ttl_max] {
            let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
            check_ttl(&client, asked, &mut report);
            assert_eq!(report.status(), 0, "{}", report.as_text());
        }
    }
}
