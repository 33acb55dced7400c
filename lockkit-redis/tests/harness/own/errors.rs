//! Errors with which a server refuses a request.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_core::{ErrorKind, LockClient};
use lockkit_testbed::Redis;
use tokio::time::{sleep, timeout};

use super::{
    super::{Servers, side},
    HANG, LONG, client, name, off, until,
};

pub(super) const CASES: [Case; 2] = [
    own_case!(transient_errors_are_retried_at_a_bounded_rate: TruthfulErrors),
    own_case!(permanent_errors_fail_at_once: TruthfulErrors),
];

/// The most requests within one second of an error: pauses grow from 50 ms on.
const REQUESTS_MAX: u64 = 40;

/// A transient error: its code, how to cause it, and how to end it.
type TransientError = (&'static str, fn(&Redis) -> Result<()>, fn(&Redis) -> Result<()>);

const TRANSIENT_ERRORS: [TransientError; 5] = [
    ("OOM", |server| set(server, "maxmemory", "1"), |server| set(server, "maxmemory", "0")),
    (
        "NOREPLICAS",
        |server| set(server, "min-replicas-to-write", "1"),
        |server| set(server, "min-replicas-to-write", "0"),
    ),
    (
        "READONLY",
        |server| server.cli(&["REPLICAOF", "127.255.255.254", "1"]).map(drop),
        |server| server.cli(&["REPLICAOF", "NO", "ONE"]).map(drop),
    ),
    ("BUSY", |server| server.keep_busy().map(drop), |server| server.cli(&["SCRIPT", "KILL"]).map(drop)),
    ("LOADING", load_slowly, |server| set(server, "key-load-delay", "0")),
];

fn set(server: &Redis, option: &str, value: &str) -> Result<()> {
    server.cli(&["CONFIG", "SET", option, value]).map(drop)
}

fn load_slowly(server: &Redis) -> Result<()> {
    server.cli(&["DEBUG", "POPULATE", "1000", "ballast", "2000"])?;
    // It serves other clients after this many bytes, and loads a key in this many microseconds.
    set(server, "loading-process-events-interval-bytes", "1024")?;
    set(server, "key-load-delay", "20000")?;
    drop(server.begin(&["DEBUG", "RELOAD"])?);
    for _ in 0..1_000 {
        match server.cli(&["PING"]) {
            Err(error) if error.to_string().contains("LOADING") => return Ok(()),
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    bail!("the server does not load")
}

async fn transient_errors_are_retried_at_a_bounded_rate() -> Result<()> {
    let server = off(<Redis as Servers>::start)?;
    let client = client(&server.url_for_clients(), LONG).await?;
    for (code, begin, end) in TRANSIENT_ERRORS {
        let lock = client.lock(format!("errors-{code}"))?;
        lock.acquire().await?.release().await?;
        let before = off(|| evaluations(&server))?;
        off(|| begin(&server)).with_context(|| format!("no {code}"))?;
        let error = timeout(HANG, lock.try_acquire()).await?.err().with_context(|| format!("no {code}"))?;
        ensure!(error.kind() == ErrorKind::Unavailable, "{code}: {error}");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        sleep(Duration::from_secs(1)).await;
        ensure!(!waiting.is_finished(), "{code} is not retried: {:?}", waiting.await?);
        off(|| end(&server))?;
        let guard = timeout(HANG, waiting).await.with_context(|| format!("after {code}"))???;
        let asked = off(|| evaluations(&server))? - before;
        println!("{code}: reported as {error:?}; {asked} requests in a second");
        ensure!(asked < REQUESTS_MAX, "{code}: {asked} requests in about a second");
        guard.release().await?;
    }
    client.close().await?;
    Ok(())
}

/// Returns how often a script was requested, executed or refused.
fn evaluations(server: &Redis) -> Result<u64> {
    let info = server.cli(&["INFO", "commandstats"])?;
    let line = info.text().lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let fields = line.unwrap_or_default().split([':', ',']).filter_map(|field| field.split_once('='));
    let counts = fields.filter(|(name, _)| ["calls", "rejected_calls"].contains(name));
    Ok(counts.map(|(_, count)| count.parse::<u64>()).sum::<Result<u64, _>>()?)
}

async fn permanent_errors_fail_at_once() -> Result<()> {
    let server = off(<Redis as Servers>::start)?;
    let client = client(&server.url_for_clients(), LONG).await?;
    let queue = side(&name("errors"), "queue");

    off(|| server.cli(&["RPUSH", &queue, "junk"]))?;
    refused(&client, ErrorKind::Unexpected, "WRONGTYPE").await?;
    off(|| server.cli(&["DEL", &queue]))?;
    client.lock("errors")?.acquire().await?.release().await?;

    for right in ["+evalsha", "+set"] {
        let taken = right.replace('+', "-");
        off(|| server.cli(&["ACL", "SETUSER", "app", &taken]))?;
        refused(&client, ErrorKind::Denied, "NOPERM").await?;
        off(|| server.cli(&["ACL", "SETUSER", "app", right]))?;
        until("the lock is granted again", async || match client.lock("errors")?.try_acquire().await {
            Ok(Some(guard)) => Ok(guard.release().await.is_ok()),
            _ => Ok(false),
        })
        .await?;
    }
    client.close().await?;
    Ok(())
}

/// Asserts that a try and a waiting acquire fail with this kind.
async fn refused(client: &LockClient, kind: ErrorKind, why: &str) -> Result<()> {
    let lock = client.lock("errors")?;
    let tried = timeout(HANG, lock.try_acquire()).await?.map(drop);
    let waited = timeout(HANG, lock.acquire()).await?.map(drop);
    for outcome in [tried, waited] {
        let error = outcome.err().with_context(|| format!("{why}: granted"))?;
        ensure!(error.kind() == kind, "{why} is reported as {error:?}");
    }
    Ok(())
}
