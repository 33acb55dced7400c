//! The check for residue: after each case, and in the shared store after the last case.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{ErrorKind, LockClient, LockName};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::{
    Entry, Harness, Hook, Sharing, Store,
    case::SuiteCase,
    context::{Context, Cx},
    descriptors::Descriptors,
};

/// Locks that the check for residue acquires again, per case; of the others it sees the entries.
const LOCKS_MAX: usize = 8;

/// Pause between two listings of a store.
const LIST_PAUSE: Duration = Duration::from_millis(100);

/// How long background work may run after the last case.
const END_MAX: Duration = Duration::from_secs(10);

/// The same of clients whose holds have no ttl, after each case.
const CLOSE_MAX: Duration = Duration::from_secs(120);

/// Runs a case, and checks what it leaves.
pub(crate) async fn run_and_check(run: SuiteCase, context: &Cx) -> Result<()> {
    let descriptors = Descriptors::of_this_runtime()?;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    run(Arc::clone(context)).await?;
    let bound = context.check_residue().await?;
    // A client that was dropped closes its connections in the background.
    let start = Instant::now();
    loop {
        let (open, running) = (descriptors.left_open(), tasks().saturating_sub(before));
        if open.is_empty() && running == 0 {
            return Ok(());
        }
        if start.elapsed() > bound.min(CLOSE_MAX) {
            ensure!(open.is_empty(), "residue: connections are left open: {open:?}");
            bail!("residue: {running} tasks are still running");
        }
        sleep(LIST_PAUSE).await;
    }
}

impl Context {
    /// Checks after the case that every lock is free again, and that its store holds nothing that must not stay.
    ///
    /// Returns the longest time in which what its clients do in the background ends.
    async fn check_residue(&self) -> Result<Duration> {
        let names: Vec<LockName> = self.names().into_iter().take(LOCKS_MAX).collect();
        let clients = self.take_clients();
        let longest = clients.iter().map(LockClient::ttl).filter(|ttl| *ttl < Duration::MAX).max();
        let bound = self.bounds(longest.unwrap_or(Duration::MAX)).takeover();
        // Clients need their connections to close their sessions: a case must not rely on the ttl to clean up.
        for link in self.links() {
            link.heal().await?;
        }
        if self.harness().hooks().contains(&Hook::Watched) && self.sharing() != Sharing::Cluster {
            self.nothing_is_watched(bound).await?;
        }
        // In parallel: on a real server each close takes round trips.
        let closing: Vec<_> =
            clients.into_iter().map(|client| tokio::spawn(async move { client.close().await })).collect();
        for closed in closing {
            // A session that could not be closed ends with its ttl, which `bound` includes.
            let _ = closed.await?;
        }
        let checker = LockClient::builder(self.store().backend()?)
            .ttl(self.long_ttl())
            .clock(self.clock())
            .connect_timeout(bound)
            .build()
            .await
            .context("no client to check for residue")?;
        for name in &names {
            match checker.lock(name.as_str())?.acquire_timeout(bound).await? {
                Some(guard) => guard.release().await?,
                None => bail!("residue: {name:?} is still locked {bound:?} after the case"),
            }
            let left = async || match checker.inspect(name.as_str()).await {
                Ok(found) => Ok(found.holder.is_none() && found.waiters.is_empty()),
                Err(error) if error.kind() == ErrorKind::Unsupported => Ok(true),
                Err(error) => Err(error.into()),
            };
            self.eventually(bound, &format!("nothing is left of {name:?}"), left).await?;
        }
        checker.close().await?;
        if self.harness().hooks().contains(&Hook::Contents) {
            self.nothing_is_left(false, bound).await?;
        }
        // Only now: a close would remove what they have left.
        for session in self.take_sessions() {
            let _ = session.close().await;
        }
        Ok(bound)
    }

    /// Waits until no client watches a lock of the case, while the clients are still open: a close would end its watches.
    async fn nothing_is_watched(&self, within: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = self.store().watched().await.map(|mut places| {
                places.retain(|place| is_named_after(self.id(), place));
                places
            });
            match left {
                Ok(left) if left.is_empty() => return Ok(()),
                Ok(left) if start.elapsed() > within => bail!("residue: still watched are {left:?}"),
                Err(error) if start.elapsed() > within => {
                    return Err(error.context("no list of what is watched"));
                }
                _ => sleep(LIST_PAUSE).await,
            }
        }
    }

    /// Waits until the store holds only what may stay, see [`nothing_is_left`]. In the shared store, only what has the
    /// id of the context counts.
    pub(crate) async fn nothing_is_left(&self, also_bounded: bool, within: Duration) -> Result<()> {
        // One more, for what belongs to no lock.
        let most = self.harness().left_per_lock().saturating_mul(self.names().len() + 1);
        let is_shared = self.sharing() == Sharing::Shared;
        let is_ours = |entry: &Entry| !is_shared || is_named_after(self.id(), &entry.place);
        nothing_is_left(self.harness(), self.store(), is_ours, also_bounded, most, within).await
    }
}

/// Whether a place in a store contains this id, and not as the end of a longer one.
fn is_named_after(id: &str, place: &str) -> bool {
    place.match_indices(id).any(|(start, _)| !place[..start].ends_with(|last: char| last.is_ascii_digit()))
}

/// Checks after the last case that the shared store holds no permanent entries that must not stay.
pub(crate) async fn check_shared(harness: &Arc<dyn Harness>) -> Result<()> {
    let store = harness.store(Sharing::Shared)?;
    nothing_is_left(&**harness, &*store, |_| true, false, usize::MAX, END_MAX).await
}

/// Waits until those entries of the store that `count` are only what may stay and, unless `also_bounded`, what it removes
/// by itself: clients that died or were cut off leave such entries. All together may be `most`.
async fn nothing_is_left(
    harness: &dyn Harness,
    store: &dyn Store,
    count: impl Fn(&Entry) -> bool,
    also_bounded: bool,
    most: usize,
    within: Duration,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let all: Vec<Entry> = match store.contents().await {
            Ok(entries) => entries.into_iter().filter(&count).collect(),
            // A cluster may be electing its leader.
            Err(_) if start.elapsed() <= within => {
                sleep(LIST_PAUSE).await;
                continue;
            }
            Err(error) => return Err(error.context("the store does not list its entries")),
        };
        let mut left = all.clone();
        left.retain(|entry| (also_bounded || !entry.is_bounded) && harness.may_stay(entry).is_none());
        if left.is_empty() && all.len() <= most {
            return Ok(());
        }
        if start.elapsed() > within {
            ensure!(left.is_empty(), "residue: left in the store are {left:?}");
            bail!("residue: {} entries instead of at most {most}: {all:?}", all.len());
        }
        sleep(LIST_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_named_after_a_whole_id() {
        let places =
            ["/locks/a_case%2F12.3.4/entry", "12.3.4", "locks:{a_case/12.3.45}:queue", "112.3.4/12.3.4"];
        assert!(places.iter().all(|place| is_named_after("12.3.", place)));
        let others = ["a_case/112.3.4", "a_case/12.33.4", "a_case/12.4.3", "a_case"];
        assert!(others.iter().all(|place| !is_named_after("12.3.", place)));
    }
}
