//! The check for residue: after each case, and in the shared store after the last case.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{ErrorKind, LockClient, LockName};
use tokio::time::{Instant, sleep};

use crate::{
    Harness, Hook, Sharing, Store,
    case::SuiteCase,
    context::{Context, Cx},
    descriptors::Descriptors,
};

/// Locks that the check for residue acquires again, per case.
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
    run(Arc::clone(context)).await?;
    let bound = context.check_residue().await?;
    // A client that was dropped closes its connections in the background.
    let start = Instant::now();
    loop {
        let left = descriptors.left_open();
        if left.is_empty() {
            return Ok(());
        }
        ensure!(start.elapsed() <= bound.min(CLOSE_MAX), "residue: connections are left open: {left:?}");
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
        // The shared store is checked after the last case.
        if self.harness().hooks().contains(&Hook::Contents) && self.sharing() != Sharing::Shared {
            self.nothing_is_left(false, bound).await?;
        }
        Ok(bound)
    }

    /// Waits until the store holds only what may stay, see [`nothing_is_left`].
    pub(crate) async fn nothing_is_left(&self, also_bounded: bool, within: Duration) -> Result<()> {
        // One more, for what belongs to no lock.
        let most = self.harness().left_per_lock().saturating_mul(self.names().len() + 1);
        nothing_is_left(self.harness(), self.store(), also_bounded, most, within).await
    }
}

/// Checks after the last case that the shared store holds no permanent entries that must not stay.
pub(crate) async fn check_shared(harness: &Arc<dyn Harness>) -> Result<()> {
    let store = harness.store(Sharing::Shared)?;
    nothing_is_left(&**harness, &*store, false, usize::MAX, END_MAX).await
}

/// Waits until the store holds only what may stay and, unless `also_bounded`, what it removes by itself: clients that
/// died or were cut off leave such entries. All together may be `most`.
async fn nothing_is_left(
    harness: &dyn Harness,
    store: &dyn Store,
    also_bounded: bool,
    most: usize,
    within: Duration,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let all = match store.contents().await {
            Ok(entries) => entries,
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
