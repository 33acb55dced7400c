//! W7: the server freezes. The holder must learn of the end of its hold before the server can give the lock to another
//! client.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lockkit_core::support::lock;
use lockkit_testbed::{Message, Proxy};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{ANSWER_MAX, ConnectArguments, now};
use crate::{
    backend::{Backend, Server},
    child::{self, Child, Problem},
};

/// Pause between two looks at the proxies' counters: the error of the result.
const LOOK: Duration = Duration::from_millis(1);

/// Bytes that follow others within this time are of the same heartbeat.
const SAME_HEARTBEAT: Duration = Duration::from_millis(20);

/// What the process gets.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    connection: ConnectArguments,
}

/// When the process saw the end of its hold.
#[derive(Debug, Deserialize, Serialize)]
struct Seen {
    lost_at: Duration,
    ttl: Duration,
}

/// When the holder learned of the loss.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// From the earliest instant at which the server can have let the hold expire; negative is early, as it must be.
    pub late_ms: f64,
    /// The ttl.
    pub ttl_ms: f64,
}

pub(crate) async fn child(job: Job) -> Result<()> {
    let client = job.connection.open().await?;
    let guard = client.lock("bench-loss")?.acquire().await?;
    child::ready().await?;
    guard.lost().await;
    child::report(&Seen { lost_at: now(), ttl: client.ttl() }).await?;
    // Without a close: the server may still be frozen.
    Ok(())
}

pub(crate) async fn measure(backend: Backend, ttl: Duration) -> Result<Loss, Problem> {
    let server = Server::start(backend)?;
    let proxies = server.proxies()?;
    let addresses: Vec<String> = proxies.iter().map(Proxy::endpoint).collect();
    let connection = ConnectArguments::new(backend, &addresses, ttl);
    connection.set_up(backend).await.context("set the servers up")?;
    let mut child = Child::own("loss", &Job { connection })?;
    child.ready(ANSWER_MAX).await?;
    let renewals = Renewals::watch(backend, proxies);
    child.go().await?;
    renewals.next(ttl * 2).await?;
    // Heartbeats are at least twice as far apart.
    sleep(ttl.mul_f64(fastrand::f64() / 20.0)).await;
    server.freeze()?;
    let renewed = renewals.last().context("no heartbeat")?;
    let seen: Seen = child.result(ttl * 4).await?;
    server.resume()?;
    child.end().await?;
    let expiry = renewed + seen.ttl;
    let late_ms = (seen.lost_at.as_secs_f64() - expiry.as_secs_f64()) * 1e3;
    Ok(Loss { late_ms, ttl_ms: seen.ttl.as_secs_f64() * 1e3 })
}

/// The heartbeats that have passed the proxies.
struct Renewals {
    /// The earliest instant at which a server can have got the last one.
    last: Arc<Mutex<Option<Duration>>>,
    /// Looks at the proxies, and keeps them.
    _task: tokio::task::JoinHandle<()>,
}

impl Renewals {
    fn watch(backend: Backend, proxies: Vec<Proxy>) -> Self {
        let last = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&last);
        let task = if backend == Backend::Etcd {
            // Its clients also send pings, which renew nothing. A reply comes a moment after the renewal.
            for proxy in &proxies {
                let noted = Arc::clone(&noted);
                proxy.drop_messages(Message::KeepAlives, move |_| {
                    *lock(&noted) = Some(now());
                    false
                });
            }
            tokio::spawn(async move {
                let _kept = proxies;
                std::future::pending().await
            })
        } else {
            tokio::spawn(look(proxies, noted))
        };
        Self { last, _task: task }
    }

    fn last(&self) -> Option<Duration> {
        *lock(&self.last)
    }

    /// Waits for a heartbeat.
    async fn next(&self, within: Duration) -> Result<()> {
        let (before, end) = (self.last(), now() + within);
        while self.last() == before {
            ensure!(now() < end, "no heartbeat for {within:?}");
            sleep(LOOK).await;
        }
        Ok(())
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self._task.abort();
    }
}

/// Notes when bytes begin to pass.
async fn look(proxies: Vec<Proxy>, noted: Arc<Mutex<Option<Duration>>>) {
    let bytes = || proxies.iter().map(|proxy| proxy.counts().to_server).sum::<u64>();
    let (mut known, mut looked, mut moved) = (bytes(), now(), Duration::ZERO);
    loop {
        sleep(LOOK).await;
        let (found, at) = (bytes(), now());
        if found != known {
            if at - moved > SAME_HEARTBEAT {
                *lock(&noted) = Some(looked);
            }
            moved = at;
        }
        (known, looked) = (found, at);
    }
}
