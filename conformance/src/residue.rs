//! The look for residue: after each case, and in the store that cases have shared when all of them are over.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{ErrorKind, LockClient, LockName};
use tokio::time::{Instant, sleep};

use crate::{Entry, Harness, Hook, Sharing, Store, context::Context};

/// Locks that the look for residue tries again, per case.
const LOCKS_MAX: usize = 8;

/// Pause between two looks into a store.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// How long what runs in the background may take to end when the last case has.
const END_MAX: Duration = Duration::from_secs(10);

impl Context {
    /// After the case: every lock is free again, and nothing of it is left in the store.
    pub(crate) async fn look_for_residue(&self) -> Result<()> {
        let names: Vec<LockName> = self.names().into_iter().take(LOCKS_MAX).collect();
        let clients = self.take_clients();
        let longest = clients.iter().map(LockClient::ttl).filter(|ttl| *ttl < Duration::MAX).max();
        let patience = self.bounds(longest.unwrap_or(Duration::MAX)).takeover();
        // Clients need their ways to say goodbye: it is not for their ttl to tidy up behind a case.
        for link in self.links() {
            link.heal().await?;
        }
        // Side by side: on a real server each of them has its round trips.
        let closing: Vec<_> =
            clients.into_iter().map(|client| tokio::spawn(async move { client.close().await })).collect();
        for closed in closing {
            // A client that could not say goodbye is left to its ttl, which `patience` allows for.
            let _ = closed.await?;
        }
        let looker = LockClient::builder(self.store().backend()?).ttl(self.long_ttl()).clock(self.clock());
        let looker = looker.build().await.context("no client to look for residue with")?;
        for name in &names {
            match looker.lock(name.as_str())?.acquire_timeout(patience).await? {
                Some(guard) => guard.release().await?,
                None => bail!("residue: {name:?} is still locked {patience:?} after the case"),
            }
            let left = async || match looker.inspect(name.as_str()).await {
                Ok(found) => Ok(found.holder.is_none() && found.waiters.is_empty()),
                Err(error) if error.kind() == ErrorKind::Unsupported => Ok(true),
                Err(error) => Err(error.into()),
            };
            self.eventually(patience, &format!("nothing is left of {name:?}"), left).await?;
        }
        looker.close().await?;
        // What a store holds that others use is looked at when they are done.
        if self.harness().hooks().contains(&Hook::Contents) && self.sharing() != Sharing::Shared {
            self.nothing_is_left(false, patience).await?;
        }
        Ok(())
    }

    /// Waits until nothing is in the store but what may stay: as [`nothing_is_left`].
    pub(crate) async fn nothing_is_left(&self, also_bounded: bool, within: Duration) -> Result<()> {
        nothing_is_left(self.harness(), self.store(), also_bounded, within).await
    }
}

/// After the last case: the store that they have shared holds nothing that nobody will ever take away.
pub(crate) async fn look_at_shared(harness: &Arc<dyn Harness>) -> Result<()> {
    let store = harness.store(Sharing::Shared)?;
    nothing_is_left(&**harness, &*store, false, END_MAX).await
}

/// Waits until nothing is in the store but what may stay, and, unless `also_bounded`, what the store takes away by itself:
/// clients that died or were cut off leave such.
async fn nothing_is_left(
    harness: &dyn Harness,
    store: &dyn Store,
    also_bounded: bool,
    within: Duration,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut left = store.contents().await.context("the store does not say what it holds")?;
        left.retain(|Entry { place, is_bounded }| {
            (also_bounded || !is_bounded) && harness.may_stay(place).is_none()
        });
        if left.is_empty() {
            return Ok(());
        }
        ensure!(start.elapsed() <= within, "residue: left in the store are {left:?}");
        sleep(LOOK_PAUSE).await;
    }
}
