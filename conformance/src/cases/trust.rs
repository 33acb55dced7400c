//! Whom a client trusts, what it may do, and what it must not tell.

use std::{
    fmt::Debug,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lockkit_core::{Clock, ErrorKind, LockClient, LockName};
use tokio::runtime::Builder;
use tracing_subscriber::fmt::{MakeWriter, format::FmtSpan};

use crate::{
    Access, AnyBackend, Case, Hook, Shown,
    case::{Need, case},
    context::{Cx, kind, within},
};

const TLS: Need = Need::Hook(Hook::Tls);

/// Not to be found in anything that is told.
const SECRET: &str = "hunter2-and-a-half";

pub(super) const CASES: &[Case] = &[
    case!(a_server_that_is_trusted_serves_over_tls: S4, Security, needs TLS),
    case!(a_server_of_an_unknown_authority_is_denied: S4, Security P12, needs TLS),
    case!(a_server_with_another_name_is_denied: S4, Security P12, needs TLS),
    case!(a_server_whose_certificate_has_expired_is_denied: S4, Security P12, needs TLS),
    case!(a_lock_that_is_forbidden_is_denied_and_disturbs_no_other: S5, Security P12 P14,
        needs Need::Hook(Hook::DenyLock); bugs 50),
    case!(no_secret_is_told_or_logged: S3, Security, needs Need::Hook(Hook::Secret)),
];

async fn a_server_that_is_trusted_serves_over_tls(cx: Cx) -> Result<()> {
    let name = cx.name();
    let backend = cx.backend_for(Access::Tls(Shown::Trusted)).await?;
    let (one, other) = (cx.client_of(backend.clone(), cx.long_ttl()), cx.client_of(backend, cx.long_ttl()));
    let (one, other) = (one.await?, other.await?);
    let held = one.lock(name.as_str())?.try_acquire().await?.context("a free lock is granted")?;
    ensure!(other.lock(name.as_str())?.try_acquire().await?.is_none(), "two holders");
    Ok(held.release().await?)
}

async fn a_server_of_an_unknown_authority_is_denied(cx: Cx) -> Result<()> {
    is_denied(&cx, Shown::OfUnknownAuthority).await
}

async fn a_server_with_another_name_is_denied(cx: Cx) -> Result<()> {
    is_denied(&cx, Shown::WithWrongName).await
}

async fn a_server_whose_certificate_has_expired_is_denied(cx: Cx) -> Result<()> {
    is_denied(&cx, Shown::Expired).await
}

/// At once: what no retry mends is not waited for.
async fn is_denied(cx: &Cx, shown: Shown) -> Result<()> {
    let backend = cx.backend_for(Access::Tls(shown)).await?;
    let slack = cx.bounds(cx.long_ttl()).slack;
    let refused =
        within(slack, "the refusal", LockClient::builder(backend).ttl(cx.long_ttl()).build()).await?;
    ensure!(kind(refused)? == ErrorKind::Denied, "another kind");
    Ok(())
}

async fn a_lock_that_is_forbidden_is_denied_and_disturbs_no_other(cx: Cx) -> Result<()> {
    let (forbidden, name) = (cx.name(), cx.name());
    let backend = cx.backend_for(Access::AllBut(forbidden.clone())).await?;
    let client = cx.client_of(backend, cx.short_ttl()).await?;
    let bounds = cx.bounds_of(&client);
    let held = client.lock(name.as_str())?.acquire().await?;
    let lock = client.lock(forbidden.as_str())?;
    for patience in [Duration::ZERO, bounds.slack * 2] {
        let asked = within(bounds.slack, "the refusal", lock.acquire_timeout(patience)).await?;
        ensure!(kind(asked)? == ErrorKind::Denied, "with {patience:?}: another kind");
    }
    let asked = within(bounds.slack, "the refusal", lock.acquire()).await?;
    ensure!(kind(asked)? == ErrorKind::Denied, "without a timeout: another kind");
    cx.renewed(std::slice::from_ref(&held), bounds).await?;
    ensure!(held.is_held(), "lost with the forbidden one: {:?}", held.check().err());
    let free = cx.lock(&forbidden).await?.try_acquire().await?;
    free.context("the refused attempts are in the way of others")?.release().await?;
    Ok(held.release().await?)
}

async fn no_secret_is_told_or_logged(cx: Cx) -> Result<()> {
    let name = cx.name();
    let right = cx.backend_for(Access::Secret { text: SECRET, right: true }).await?;
    let wrong = cx.backend_for(Access::Secret { text: SECRET, right: false }).await?;
    let (ttl, paused) = (cx.short_ttl(), cx.is_paused());
    // In a thread with one executor: whatever it logs, nothing else does there.
    let thread = std::thread::spawn(move || -> Result<String> {
        let heard = Heard::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_span_events(FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(heard.clone())
            .finish();
        let runtime = Builder::new_current_thread().enable_all().start_paused(paused).build()?;
        let told = tracing::subscriber::with_default(subscriber, || {
            runtime.block_on(told(right, wrong, name, ttl, paused))
        })?;
        Ok(told + &heard.text())
    });
    let told = thread.join().map_err(|_| anyhow!("the client panicked"))??;
    ensure!(told.contains("acquire"), "not even the name of an operation was heard: {} bytes", told.len());
    if let Some(at) = told.find(SECRET) {
        let before = told[..at].chars().rev().take(200).collect::<Vec<_>>();
        anyhow::bail!("told behind: {}", before.iter().rev().collect::<String>());
    }
    Ok(())
}

/// Everything that can be printed in the life of a client, and of one that is refused.
async fn told(
    right: AnyBackend,
    wrong: AnyBackend,
    name: LockName,
    ttl: Duration,
    paused: bool,
) -> Result<String> {
    let mut told = String::new();
    let mut tell = |what: &dyn Debug| told += &format!("{what:?}\n{what:#?}\n");
    let clock = if paused { Clock::tokio() } else { Clock::boot() };
    tell(&right);
    tell(&wrong);
    let refused = LockClient::builder(wrong).ttl(ttl).clock(clock.clone()).build().await;
    let refused = refused.err().context("a wrong secret was accepted")?;
    ensure!(refused.kind() == ErrorKind::Denied, "a wrong secret is {:?}", refused.kind());
    tell(&refused);
    let builder = LockClient::builder(right).ttl(ttl).clock(clock);
    tell(&builder);
    let client = builder.build().await?;
    let (lock, other) = (client.lock(name.as_str())?, client.lock(name.as_str())?);
    let held = lock.acquire().await?;
    let busy = other.try_acquire().await?;
    ensure!(busy.is_none(), "two holders");
    tell(&(&client, &lock, &held, client.inspect(name.as_str()).await));
    held.release().await?;
    client.close().await?;
    tell(&lock.try_acquire().await.err());
    told += &format!("{refused} {refused:#}");
    Ok(told)
}

/// What is logged.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

impl Heard {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl io::Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Heard {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
