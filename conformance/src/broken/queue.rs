//! Queues that grant to the youngest waiter, send the first waiter back, or ask all their waiters to look at once.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    BootInstant, Result,
    backend::{Acquired, Claim},
    limits::RECHECK_PAUSE_MIN,
};
use tokio::{sync::oneshot, time::sleep};

use super::wrapper::BrokenSession;

/// The pause between two looks of a waiter, and of all others.
const COMMON_PAUSE: Duration = RECHECK_PAUSE_MIN;

impl BrokenSession {
    /// Queues normally, but the first waiter that is granted a lock queues once more.
    pub(super) async fn sent_back(&self, claim: Claim) -> Result<Acquired> {
        let contended = self.contended(&claim).await;
        let acquired = self.inner.acquire(claim.clone()).await?;
        let is_first = || self.shared.state().sent_back.insert(claim.name().clone());
        match &acquired {
            Acquired::Granted(grant) if contended && is_first() => {
                let (again, _control) = self.detached(&claim, claim.name().clone(), true);
                let queued = self.inner.acquire(again);
                self.inner.release(grant).await?;
                queued.await
            }
            _ => Ok(acquired),
        }
    }

    /// Tries again whenever the clock shows a multiple of the pause.
    pub(super) async fn recheck_in_step(&self, claim: Claim) -> Result<Acquired> {
        loop {
            let (again, _control) = self.detached(&claim, claim.name().clone(), false);
            let acquired = self.inner.acquire(again).await?;
            if matches!(acquired, Acquired::Granted(_)) {
                return Ok(acquired);
            }
            claim.note_contended();
            let since_boot = self.clock.now().since(BootInstant::from_start(Duration::ZERO));
            let past = since_boot.as_secs() % COMMON_PAUSE.as_secs();
            let pause = COMMON_PAUSE - Duration::new(past, since_boot.subsec_nanos());
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(Acquired::GaveUp),
                () = sleep(pause) => {}
            }
        }
    }

    /// Queues normally, but passes each grant to the youngest waiter.
    pub(super) async fn serve_the_youngest(&self, claim: Claim) -> Result<Acquired> {
        if !claim.wait() {
            return self.inner.acquire(claim).await;
        }
        let (youngest, mut served) = oneshot::channel();
        self.shared.state().waiting.entry(claim.name().clone()).or_default().push(youngest);
        let (inner, shared, queued) = (Arc::clone(&self.inner), self.shared.clone(), claim.clone());
        let mut acquiring = tokio::spawn(async move {
            let mut acquired = inner.acquire(queued.clone()).await;
            while let Ok(Acquired::Granted(grant)) = acquired {
                let youngest = shared.state().waiting.get_mut(queued.name()).and_then(Vec::pop);
                let Some(youngest) = youngest else {
                    // No waiter is left.
                    let _ = inner.release(&grant).await;
                    return Ok(Acquired::GaveUp);
                };
                match youngest.send(grant) {
                    Ok(()) => return Ok(Acquired::EntryGone),
                    Err(grant) => acquired = Ok(Acquired::Granted(grant)),
                }
            }
            acquired
        });
        tokio::select! {
            biased;
            Ok(grant) = &mut served => Ok(Acquired::Granted(grant)),
            Ok(other) = &mut acquiring => match (other?, served.await) {
                (_, Ok(grant)) => Ok(Acquired::Granted(grant)),
                (other, Err(_)) => Ok(other),
            },
        }
    }
}
