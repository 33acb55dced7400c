//! What operators see: who holds a lock, who waits for it, and which locks there are.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{
    LockClient, LockGuard,
    backend::{Admin, Backend, Contender, Inspection, ListedLock, QueueKind},
    limits::LOCK_NAME_BYTES_MAX,
};

use crate::{
    AnyBackend, Case,
    case::{Need, case},
    context::{Cx, busy_or_unavailable},
};

pub(super) const CASES: &[Case] = &[
    case!(inspection_shows_the_holder_and_its_waiters: SeenHolder, needs Need::Inspection),
    case!(inspection_of_a_free_lock_shows_nobody: SeenHolder NoOrphan, needs Need::Inspection),
    case!(list_finds_every_lock_of_its_prefix_and_no_other: SeenHolder Security, needs Need::List),
    case!(list_finds_a_lock_with_a_long_name: SeenHolder, needs Need::List),
    case!(list_misses_no_lock_while_others_are_released: SeenHolder, needs Need::List),
];

/// Generous bound on the pages of a list, each of which may be empty.
const PAGES_MAX: usize = 100_000;

/// Returns a new client with this label; the case closes it.
async fn labelled(cx: &Cx, label: &str) -> Result<LockClient> {
    let builder = LockClient::builder(cx.backend()?).ttl(cx.long_ttl()).clock(cx.clock());
    Ok(builder.label(label).build().await?)
}

/// Checks that an entry of this process is shown as that of a client with this label.
fn is_of(cx: &Cx, shown: &Contender, label: &str) -> Result<()> {
    match &shown.metadata {
        Some(known) => ensure!(
            known.pid == std::process::id() && known.label.as_deref() == Some(label),
            "{shown:?} is shown instead of {label}"
        ),
        // A backend with elections stores what a candidate proposes, and with it who it is.
        None => ensure!(!cx.info().powers.elections, "of {label}, only {shown:?} is shown"),
    }
    Ok(())
}

async fn inspection_shows_the_holder_and_its_waiters(cx: Cx) -> Result<()> {
    let (name, holding) = (cx.name(), labelled(&cx, "the holder").await?);
    let guard = holding.lock(name.as_str())?.acquire().await?;
    // Waiters without an order need no entries in the store.
    let labels = if cx.promises().queue == QueueKind::Fifo { &["first", "second", "third"][..] } else { &[] };
    let (mut clients, mut waiters) = (vec![holding], Vec::new());
    for (ahead, label) in labels.iter().enumerate() {
        let client = labelled(&cx, label).await?;
        waiters.push(cx.enqueue(&client.lock(name.as_str())?, ahead).await?);
        clients.push(client);
    }
    let found = cx.client().await?.inspect(name.as_str()).await?;
    let holder = found.holder.as_ref().context("the holder is not shown")?;
    is_of(&cx, holder, "the holder")?;
    ensure!(
        holder.token == Some(guard.token()),
        "the token {} is shown as {:?}",
        guard.token(),
        holder.token
    );
    ensure!(found.waiters.len() >= labels.len(), "waiters are missing: {found:?}");
    for (waiter, label) in found.waiters.iter().zip(labels) {
        is_of(&cx, waiter, label)?;
    }
    for shown in found.waiters.iter().chain([holder]) {
        let most = clients[0].ttl();
        ensure!(shown.remaining.is_none_or(|left| left <= most), "lives longer than {most:?}: {shown:?}");
        ensure!(!shown.entry.is_empty(), "an entry without a name: {shown:?}");
    }
    guard.release().await?;
    for waiter in waiters {
        waiter.await??.release().await?;
    }
    for client in clients {
        client.close().await?;
    }
    Ok(())
}

async fn inspection_of_a_free_lock_shows_nobody(cx: Cx) -> Result<()> {
    let (name, operator) = (cx.name(), cx.client().await?);
    let nobody = async || Ok(operator.inspect(name.as_str()).await? == Inspection::default());
    ensure!(nobody().await?, "somebody is shown who holds a lock that nobody has ever used");
    let (holder, other) = (cx.lock(&name).await?, cx.lock(&name).await?);
    let guard = holder.acquire().await?;
    busy_or_unavailable(other.try_acquire().await)?;
    let waiter = cx.enqueue(&other, 0).await?;
    waiter.abort();
    let bound = cx.bounds_of(&operator).cleanup();
    cx.nobody_waits(&name, bound).await?;
    guard.release().await?;
    cx.eventually(bound, "nobody is shown of a released lock", nobody).await?;
    Ok(())
}

fn admin(backend: &AnyBackend) -> Result<&dyn Admin> {
    backend.admin().context("the backend claims lists")
}

/// Lists in pages of this size, directly at the backend: those of a client are large.
async fn list(cx: &Cx, prefix: &str, limit: usize) -> Result<Vec<ListedLock>> {
    let backend = cx.backend()?;
    let (mut listed, mut after) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = admin(&backend)?.list(prefix, after.as_deref(), limit).await?;
        listed.extend(page.locks);
        match page.next {
            None => return Ok(listed),
            next => after = next,
        }
    }
    bail!("a list that does not end")
}

/// Returns the names of listed locks, which are short.
fn names(listed: Vec<ListedLock>) -> Result<BTreeSet<String>> {
    let name = |lock: ListedLock| {
        lock.name.map(String::from).with_context(|| format!("{:?} is listed without its name", lock.entry))
    };
    listed.into_iter().map(name).collect()
}

/// Checks that exactly these locks are listed.
fn are_listed(what: &str, listed: Vec<ListedLock>, expected: &BTreeSet<String>) -> Result<()> {
    let listed = names(listed)?;
    let missing: Vec<&String> = expected.difference(&listed).collect();
    ensure!(missing.is_empty(), "{what}: missing are {missing:?}");
    let others: Vec<&String> = listed.difference(expected).collect();
    ensure!(others.is_empty(), "{what}: listed by mistake are {others:?}");
    Ok(())
}

/// Acquires these locks with one client.
async fn hold(cx: &Cx, texts: impl IntoIterator<Item = String>) -> Result<Vec<LockGuard>> {
    let (client, mut guards) = (cx.client().await?, Vec::new());
    for text in texts {
        let guard = client.lock(cx.named(&text).as_str())?.try_acquire().await?;
        guards.push(guard.with_context(|| format!("{text:?} is busy"))?);
    }
    Ok(guards)
}

async fn list_finds_every_lock_of_its_prefix_and_no_other(cx: Cx) -> Result<()> {
    let base = format!("{}-", cx.name());
    let endings = [
        "", "a", "a/", "a/b", "ab", "/", "//", ".", "..", ".a", "a.", "b c", "%", "%2F", "ä", "🔒", "{a}",
        "a*", "[a]", "A", "a\nb", "a\\b", "con", "a:0",
    ];
    let expected: BTreeSet<String> = endings.map(|ending| format!("{base}{ending}")).into();
    let mut guards = hold(&cx, expected.iter().cloned()).await?;
    let neighbours = [
        base[..base.len() - 1].to_owned(),
        format!("x{base}"),
        format!("{}a", base.to_uppercase()),
        format!("{}a", base.replace('/', "%2F")),
    ];
    guards.extend(hold(&cx, neighbours).await?);
    let waiter = cx.enqueue(&cx.lock(guards[0].name()).await?, 0).await?;
    for limit in [3, 1_000] {
        are_listed(&format!("in pages of {limit}"), list(&cx, &base, limit).await?, &expected)?;
    }
    for ending in ["a", "a/", ".", "a.", "%", "%2", "ä", "A", "c"] {
        let prefix = format!("{base}{ending}");
        let begin_so = expected.iter().filter(|name| name.starts_with(&prefix)).cloned().collect();
        are_listed(&format!("with {ending:?}"), list(&cx, &prefix, 3).await?, &begin_so)?;
    }
    let mut of_client = cx.client().await?.list(&base);
    let mut listed = Vec::new();
    while let Some(page) = of_client.next_page().await? {
        listed.extend(page);
    }
    are_listed("by a client", listed, &expected)?;
    for guard in guards {
        guard.release().await?;
    }
    waiter.await??.release().await?;
    let empty = async || Ok(list(&cx, &base, 1_000).await?.is_empty());
    let bound = cx.bounds(cx.long_ttl()).cleanup();
    cx.eventually(bound, "no released lock is listed", empty).await?;
    Ok(())
}

async fn list_finds_a_lock_with_a_long_name(cx: Cx) -> Result<()> {
    let base = format!("{}-", cx.name());
    // Of characters that take three bytes each where they are encoded.
    let long = format!("{base}{}", "/".repeat(LOCK_NAME_BYTES_MAX - base.len()));
    let guards = hold(&cx, [long.clone()]).await?;
    let listed = list(&cx, &base, 3).await?;
    // A store may have its digest only.
    let is_long = |lock: &ListedLock| lock.name.as_ref().is_none_or(|name| name.as_str() == long);
    ensure!(!listed.is_empty() && listed.iter().all(is_long), "{listed:?} is listed instead");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn list_misses_no_lock_while_others_are_released(cx: Cx) -> Result<()> {
    const LOCKS: usize = 12;
    const PAGE: usize = 3;
    let base = format!("{}-", cx.name());
    let mut held = hold(&cx, (0..LOCKS).map(|number| format!("{base}{number}"))).await?;
    let (backend, mut after) = (cx.backend()?, None);
    for _ in 0..PAGES_MAX {
        let page = admin(&backend)?.list(&base, after.as_deref(), PAGE).await?;
        let listed = names(page.locks)?;
        // What was listed is released before the next page is read.
        for guard in std::mem::take(&mut held) {
            if listed.contains(guard.name().as_str()) { guard.release().await? } else { held.push(guard) }
        }
        match page.next {
            None => break,
            next => after = next,
        }
    }
    let missed: Vec<_> = held.iter().map(LockGuard::name).collect();
    ensure!(missed.is_empty(), "held all the time, and not listed: {missed:?}");
    Ok(())
}
