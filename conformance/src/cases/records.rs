//! Work that runs once per period, and the records that it rests on.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{
    Turn,
    backend::{Records, Session},
    support::lock,
};
use tokio::time::sleep;

use crate::{
    Case,
    case::{Need, case},
    context::Cx,
    direct::take,
};

pub(super) const CASES: &[Case] = &[
    case!(work_runs_once_per_period_although_clocks_differ: OncePerPeriod, needs Need::Records),
    case!(process_that_comes_late_does_not_repeat_the_work: OncePerPeriod, needs Need::Records),
    case!(record_outlives_holds_and_sessions: OncePerPeriod, needs Need::Records),
    case!(former_holder_writes_no_record: OncePerPeriod FencedExclusion, needs Need::Records),
    case!(records_of_different_names_are_independent: OncePerPeriod Security, needs Need::Records),
];

/// Long enough to test in: no period ends by itself.
const PERIOD: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the records of the suite are kept.
const KEEP: Duration = Duration::from_secs(60);

async fn work_runs_once_per_period_although_clocks_differ(cx: Cx) -> Result<()> {
    const PROCESSES: u64 = 3;
    let (name, periods) = (cx.name(), u32::try_from(cx.times(8, 3))?);
    let done = Arc::<Mutex<BTreeMap<u32, usize>>>::default();
    let mut clients = Vec::new();
    for _ in 0..PROCESSES {
        clients.push(cx.client().await?);
    }
    for period in 0..periods {
        // At the first moment some clocks show the period and some still show the one before; at the second all do.
        for since_midnight in [Duration::ZERO, Duration::from_secs(2)] {
            let mut processes = Vec::new();
            for (client, process) in clients.iter().zip(0..) {
                // Each clock is half a second ahead of the one before it; the first one is late.
                let now = midnight() + PERIOD * period + since_midnight - Duration::from_millis(750)
                    + Duration::from_millis(500 * process);
                let work = client.once_per(name.as_str(), PERIOD)?.wall_clock(move || now);
                let (done, day) = (Arc::clone(&done), day_of(now)?);
                processes.push(tokio::spawn(async move {
                    work.run(async |_| *lock(&done).entry(day).or_default() += 1).await.map(drop)
                }));
            }
            for process in processes {
                process.await??;
            }
        }
    }
    let (mut done, first) = (std::mem::take(&mut *lock(&done)), day_of(midnight())?);
    // Nobody had done the work of the day before the first one, in which some clocks were.
    let before = done.remove(&(first - 1)).unwrap_or_default();
    let once = (first..first + periods).map(|day| (day, 1)).collect();
    ensure!(done == once && before <= 1, "runs by day, after {before} of the day before: {done:?}");
    Ok(())
}

async fn process_that_comes_late_does_not_repeat_the_work(cx: Cx) -> Result<()> {
    let (name, now) = (cx.name(), midnight() + PERIOD / 2);
    let (one, late) = (cx.client().await?, cx.client().await?);
    let work = one.once_per(name.as_str(), PERIOD)?.wall_clock(move || now);
    let guard = work.begin().await?.context("the first of this period")?;
    let other = late.once_per(name.as_str(), PERIOD)?.wall_clock(move || now + PERIOD / 3);
    let during = other.begin_timeout(Duration::from_secs(30)).await?;
    ensure!(matches!(during, Turn::Done), "while the work runs: {during:?}");
    guard.release().await?;
    one.close().await?;
    let after = other.begin_timeout(Duration::from_secs(30)).await?;
    ensure!(matches!(after, Turn::Done), "after it has run: {after:?}");
    let next = late.once_per(name.as_str(), PERIOD)?.wall_clock(move || now + PERIOD);
    let guard = next.begin().await?.context("the first of the next period")?;
    Ok(guard.release().await?)
}

async fn record_outlives_holds_and_sessions(cx: Cx) -> Result<()> {
    let (name, [one, other]) = (cx.name(), cx.two_sessions().await?);
    ensure!(records(&one)?.read(&name).await?.is_none(), "a record that nobody wrote");
    let grant = take(&one, &name).await?;
    for text in ["first", "second", "second"] {
        ensure!(records(&one)?.write(&grant, text, KEEP).await?, "the holder was refused");
        let seen = records(&other)?.read(&name).await?;
        ensure!(seen.as_deref() == Some(text), "{seen:?} instead of {text}");
    }
    one.release(&grant).await?;
    one.close().await?;
    let seen = records(&other)?.read(&name).await?;
    ensure!(seen.as_deref() == Some("second"), "{seen:?} after the end of the session");
    Ok(())
}

async fn former_holder_writes_no_record(cx: Cx) -> Result<()> {
    let (name, [one, other]) = (cx.name(), cx.two_sessions().await?);
    let former = take(&one, &name).await?;
    one.release(&former).await?;
    ensure!(!records(&one)?.write(&former, "nobody holds", KEEP).await?, "confirmed although nobody holds");
    let current = take(&other, &name).await?;
    ensure!(records(&other)?.write(&current, "current", KEEP).await?, "the holder was refused");
    ensure!(!records(&one)?.write(&former, "too late", KEEP).await?, "confirmed although another one holds");
    let seen = records(&one)?.read(&name).await?;
    ensure!(seen.as_deref() == Some("current"), "a former holder has written {seen:?}");
    Ok(other.release(&current).await?)
}

async fn records_of_different_names_are_independent(cx: Cx) -> Result<()> {
    let session = cx.session(cx.long_ttl()).await?;
    let base = cx.name();
    let names = ["", "/", "/record", ":record", "%"].map(|end| cx.named(&format!("{base}{end}")));
    for (number, name) in names.iter().enumerate() {
        let grant = take(&session, name).await?;
        let text = number.to_string();
        ensure!(records(&session)?.write(&grant, &text, KEEP).await?, "the holder was refused");
        session.release(&grant).await?;
    }
    for (number, name) in names.iter().enumerate() {
        let seen = records(&session)?.read(name).await?;
        ensure!(seen == Some(number.to_string()), "{seen:?} at {name:?}");
    }
    // A record is no entry of a lock.
    sleep(Duration::from_millis(1)).await;
    for name in &names {
        let grant = take(&session, name).await?;
        session.release(&grant).await?;
    }
    Ok(())
}

/// The start of a period.
fn midnight() -> SystemTime {
    SystemTime::UNIX_EPOCH + PERIOD * 20_000
}

fn day_of(time: SystemTime) -> Result<u32> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(u32::try_from(since.as_secs() / PERIOD.as_secs())?)
}

fn records(session: &Arc<dyn Session>) -> Result<&dyn Records> {
    session.records().context("the backend claims records")
}
