//! Whom a client trusts, what it may do, and that it keeps its secrets.

use std::{fmt::Debug, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use lockkit_core::{Clock, ErrorKind, LockClient, LockName};
use tokio::runtime::Builder;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::{
    Access, AnyBackend, Case, Hook, ShownCertificate,
    case::{Need, case},
    context::{Cx, kind, within},
    direct::LogText,
};

const TLS: Need = Need::Hook(Hook::Tls);

/// Must not appear in any output.
const SECRET: &str = "hunter2-and-a-half";

pub(super) const CASES: &[Case] = &[
    case!(a_server_that_is_trusted_serves_over_tls: Security, needs TLS),
    case!(a_server_of_an_unknown_authority_is_denied: Security TruthfulErrors, needs TLS),
    case!(a_server_with_another_name_is_denied: Security TruthfulErrors, needs TLS),
    case!(a_server_whose_certificate_has_expired_is_denied: Security TruthfulErrors, needs TLS),
    case!(forbidden_lock_is_denied_and_disturbs_no_other: Security TruthfulErrors Isolation,
        needs Need::Hook(Hook::DenyLock); bugs 50),
    case!(no_secret_is_printed_or_logged: Security, needs Need::Hook(Hook::Secret)),
];

async fn a_server_that_is_trusted_serves_over_tls(cx: Cx) -> Result<()> {
    let name = cx.name();
    let backend = cx.backend_for(Access::Tls(ShownCertificate::Trusted)).await?;
    let (one, other) = (cx.client_of(backend.clone(), cx.long_ttl()), cx.client_of(backend, cx.long_ttl()));
    let (one, other) = (one.await?, other.await?);
    let held = one.lock(name.as_str())?.try_acquire().await?.context("a free lock is granted")?;
    ensure!(other.lock(name.as_str())?.try_acquire().await?.is_none(), "two holders");
    Ok(held.release().await?)
}

async fn a_server_of_an_unknown_authority_is_denied(cx: Cx) -> Result<()> {
    is_denied(&cx, ShownCertificate::UnknownAuthority).await
}

async fn a_server_with_another_name_is_denied(cx: Cx) -> Result<()> {
    is_denied(&cx, ShownCertificate::WrongName).await
}

async fn a_server_whose_certificate_has_expired_is_denied(cx: Cx) -> Result<()> {
    is_denied(&cx, ShownCertificate::Expired).await
}

/// The refusal must be immediate: a retry would not help.
async fn is_denied(cx: &Cx, shown: ShownCertificate) -> Result<()> {
    let backend = cx.backend_for(Access::Tls(shown)).await?;
    let slack = cx.bounds(cx.long_ttl()).slack;
    let refused =
        within(slack, "the refusal", LockClient::builder(backend).ttl(cx.long_ttl()).build()).await?;
    ensure!(kind(refused)? == ErrorKind::Denied, "wrong error kind");
    Ok(())
}

async fn forbidden_lock_is_denied_and_disturbs_no_other(cx: Cx) -> Result<()> {
    let (forbidden, name) = (cx.name(), cx.name());
    let backend = cx.backend_for(Access::AllBut(forbidden.clone())).await?;
    let client = cx.client_of(backend, cx.steady_ttl()).await?;
    let bounds = cx.bounds_of(&client);
    let held = client.lock(name.as_str())?.acquire().await?;
    let lock = client.lock(forbidden.as_str())?;
    for limit in [Duration::ZERO, bounds.slack * 2] {
        let refused = within(bounds.slack, "the refusal", lock.acquire_timeout(limit)).await?;
        ensure!(kind(refused)? == ErrorKind::Denied, "with {limit:?}: wrong error kind");
    }
    let refused = within(bounds.slack, "the refusal", lock.acquire()).await?;
    ensure!(kind(refused)? == ErrorKind::Denied, "without a time limit: wrong error kind");
    cx.renewed(std::slice::from_ref(&held), bounds).await?;
    ensure!(held.is_held(), "lost with the forbidden one: {:?}", held.check().err());
    let free = cx.lock(&forbidden).await?.try_acquire().await?;
    free.context("the refused attempts are in the way of others")?.release().await?;
    Ok(held.release().await?)
}

async fn no_secret_is_printed_or_logged(cx: Cx) -> Result<()> {
    let name = cx.name();
    let right = cx.backend_for(Access::Secret { text: SECRET, right: true }).await?;
    let wrong = cx.backend_for(Access::Secret { text: SECRET, right: false }).await?;
    let (ttl, paused) = (cx.short_ttl(), cx.is_paused());
    // In a thread with its own runtime, so that only this client logs there.
    let thread = std::thread::spawn(move || -> Result<String> {
        let log = LogText::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_span_events(FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        let runtime = Builder::new_current_thread().enable_all().start_paused(paused).build()?;
        let printed = tracing::subscriber::with_default(subscriber, || {
            runtime.block_on(print_everything(right, wrong, name, ttl, paused))
        })?;
        Ok(printed + &log.text())
    });
    let output = thread.join().map_err(|_| anyhow!("the client panicked"))??;
    ensure!(output.contains("acquire"), "no operation was logged: {} bytes", output.len());
    if let Some(at) = output.find(SECRET) {
        let before = output[..at].chars().rev().take(200).collect::<Vec<_>>();
        anyhow::bail!("printed after: {}", before.iter().rev().collect::<String>());
    }
    Ok(())
}

/// Prints everything that can be printed of a client and of a refused one.
async fn print_everything(
    right: AnyBackend,
    wrong: AnyBackend,
    name: LockName,
    ttl: Duration,
    paused: bool,
) -> Result<String> {
    let mut text = String::new();
    let mut print = |what: &dyn Debug| text += &format!("{what:?}\n{what:#?}\n");
    let clock = if paused { Clock::tokio() } else { Clock::boot() };
    print(&right);
    print(&wrong);
    let refused = LockClient::builder(wrong).ttl(ttl).clock(clock.clone()).build().await;
    let refused = refused.err().context("a wrong secret was accepted")?;
    ensure!(refused.kind() == ErrorKind::Denied, "a wrong secret is {:?}", refused.kind());
    print(&refused);
    let builder = LockClient::builder(right).ttl(ttl).clock(clock);
    print(&builder);
    let client = builder.build().await?;
    let (lock, other) = (client.lock(name.as_str())?, client.lock(name.as_str())?);
    let held = lock.acquire().await?;
    let busy = other.try_acquire().await?;
    ensure!(busy.is_none(), "two holders");
    print(&(&client, &lock, &held, client.inspect(name.as_str()).await));
    held.release().await?;
    client.close().await?;
    print(&lock.try_acquire().await.err());
    text += &format!("{refused} {refused:#}");
    Ok(text)
}
