//! Lock names are independent whatever they contain, and foreign data in the store is harmless.

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{
    ErrorKind, LockGuard, LockName,
    backend::Contender,
    limits::{LABEL_BYTES_MAX, LOCK_NAME_BYTES_MAX},
};

use crate::{
    Case, Hook, StoreFault,
    case::{Need, case},
    context::{Cx, kind},
};

pub(super) const CASES: &[Case] = &[
    case!(neighbouring_names_are_independent: Security; bugs 74),
    case!(names_that_look_alike_are_independent: Security; bugs 74),
    case!(random_names_are_independent: Security; bugs 74),
    case!(an_empty_or_huge_name_is_refused: Security TruthfulErrors),
    case!(junk_in_the_store_causes_no_panic_and_no_grant: Security TruthfulErrors,
        needs Need::Hook(Hook::WriteJunk); bugs 75),
    case!(data_shown_of_a_holder_is_bounded: Security),
];

/// Checks that one client can hold all these locks at once, and another client none of them.
async fn are_independent(cx: &Cx, texts: &[String]) -> Result<()> {
    let (one, other) = (cx.client().await?, cx.client().await?);
    let mut guards: Vec<LockGuard> = Vec::new();
    for text in texts {
        let name = cx.named(text);
        let guard = one.lock(name.as_str())?.try_acquire().await?;
        let held: Vec<&LockName> = guards.iter().map(LockGuard::name).collect();
        guards.push(guard.with_context(|| format!("{name:?} is busy while {held:?} are held"))?);
    }
    for text in texts {
        ensure!(other.lock(text)?.try_acquire().await?.is_none(), "{text:?} is held twice");
    }
    for guard in guards {
        let name = guard.name().clone();
        guard.release().await?;
        let next = other.lock(name.as_str())?.try_acquire().await?;
        next.with_context(|| format!("{name:?} is not free after its release"))?.release().await?;
    }
    Ok(())
}

async fn neighbouring_names_are_independent(cx: Cx) -> Result<()> {
    let base = cx.name().to_string();
    let suffixes = ["", "/b", "b", "\0", "/", "/b/c", "//", "-", ".", "%", ":"];
    are_independent(&cx, &suffixes.map(|suffix| format!("{base}{suffix}"))).await
}

async fn names_that_look_alike_are_independent(cx: Cx) -> Result<()> {
    let run = cx.name().to_string();
    let long = "x".repeat(LOCK_NAME_BYTES_MAX - run.len() - 2);
    let odd = [
        "a",
        "A",
        "a ",
        " a",
        "a%2Fb",
        "a/b",
        "ä",
        "a\u{308}",
        "..",
        "../a",
        "{a}",
        "a*",
        "a?",
        "[a]",
        "a\\b",
        "new\nline",
        "🔒",
        "con",
        "a.lock",
    ];
    let mut texts: Vec<String> = odd.iter().map(|text| format!("{text}{run}")).collect();
    texts.extend([format!("{long}{run}1"), format!("{long}{run}2")]);
    are_independent(&cx, &texts).await
}

async fn random_names_are_independent(cx: Cx) -> Result<()> {
    let alphabet: Vec<char> = "aAbZ09/.-_~%{}*?[]\\:;,'\"`$&|<>!# \0\n\t\u{7f}äß€🔒".chars().collect();
    let mut texts: Vec<String> = Vec::new();
    while texts.len() < cx.times(300, 40) {
        let length = 1 + cx.random(24);
        let random = |_| alphabet[cx.random(alphabet.len() as u64) as usize];
        let text = (0..length).map(random).collect::<String>() + cx.name().as_str();
        texts.push(text);
    }
    are_independent(&cx, &texts).await
}

async fn an_empty_or_huge_name_is_refused(cx: Cx) -> Result<()> {
    let client = cx.client().await?;
    for text in [String::new(), "x".repeat(LOCK_NAME_BYTES_MAX + 1), "x".repeat(1 << 20)] {
        ensure!(kind(client.lock(&text))? == ErrorKind::InvalidName, "{} bytes", text.len());
    }
    let run = cx.name().to_string();
    let longest = cx.named(&format!("{}{run}", "y".repeat(LOCK_NAME_BYTES_MAX - run.len())));
    let guard = client.lock(longest.as_str())?.try_acquire().await?;
    Ok(guard.context("the longest name is free")?.release().await?)
}

async fn junk_in_the_store_causes_no_panic_and_no_grant(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let held = client.lock(name.as_str())?.acquire().await?;
    let other = cx.lock(&name).await?;
    cx.inflict(StoreFault::WriteJunk(name.clone())).await?;
    // Inspection may show less than before, or fail with an error; it must not panic.
    if let Ok(found) = client.inspect(name.as_str()).await {
        let shown = found.holder.iter().chain(&found.waiters).map(|contender| format!("{contender:?}").len());
        ensure!(shown.max().unwrap_or_default() < 64 << 10, "inspection returns the junk");
    }
    if let Ok(Some(guard)) = other.try_acquire().await {
        anyhow::bail!("granted {guard:?} while {held:?} is held");
    }
    Ok(held.release().await?)
}

async fn data_shown_of_a_holder_is_bounded(cx: Cx) -> Result<()> {
    let longer = "x".repeat(LABEL_BYTES_MAX + 1);
    let refused = lockkit_core::LockClient::builder(cx.backend()?).label(longer).build().await;
    ensure!(kind(refused)? == ErrorKind::InvalidConfig, "wrong error kind");
    // The longest possible label, of characters that take six bytes in JSON.
    let (plain, hostile) =
        (shown_of(&cx, "plain").await?, shown_of(&cx, &"\u{1}".repeat(LABEL_BYTES_MAX)).await?);
    let most = plain.iter().map(bytes_of).max().unwrap_or_default() + LABEL_BYTES_MAX;
    for shown in &hostile {
        ensure!(bytes_of(shown) <= most, "{} bytes are shown, {most} allowed", bytes_of(shown));
    }
    // A label that does not fit is left out; the process must still be shown where processes are shown at all.
    let known = |shown: &[Contender]| shown.iter().filter(|one| is_of_this_process(one)).count();
    ensure!(
        (hostile.len(), known(&hostile)) == (plain.len(), known(&plain)),
        "with a plain label {plain:?} is shown, with the longest label {hostile:?}"
    );
    Ok(())
}

fn bytes_of(shown: &Contender) -> usize {
    let metadata = shown
        .metadata
        .as_ref()
        .map(|known| known.host.len() + known.label.iter().map(String::len).sum::<usize>());
    shown.entry.len() + metadata.unwrap_or_default()
}

fn is_of_this_process(shown: &Contender) -> bool {
    shown.metadata.as_ref().is_some_and(|metadata| metadata.pid == std::process::id())
}

/// Inspects a lock with a holder and a waiter that have this label; empty where the backend cannot inspect locks.
async fn shown_of(cx: &Cx, label: &str) -> Result<Vec<Contender>> {
    let name = cx.name();
    let builder = lockkit_core::LockClient::builder(cx.backend()?).ttl(cx.long_ttl()).clock(cx.clock());
    let client = builder.label(label).build().await?;
    let lock = client.lock(name.as_str())?;
    let guard = lock.acquire().await?;
    let waiter = cx.enqueue(&lock, 0).await?;
    let shown = match cx.client().await?.inspect(name.as_str()).await {
        Ok(found) => {
            ensure!(found.holder.is_some(), "the holder is not shown");
            found.holder.into_iter().chain(found.waiters).collect()
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    guard.release().await?;
    waiter.await??.release().await?;
    client.close().await?;
    Ok(shown)
}
