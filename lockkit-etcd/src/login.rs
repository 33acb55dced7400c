//! The login of a client, which all of its requests share.
//!
//! etcd refuses a request whose token has expired or was forgotten by a restart, and one whose token is older than the
//! last change of any user or role. To log in costs the server some hundred times what a request costs (it compares a
//! password with its slow hash), so the requests that are refused together log in once.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::error::Fault;

/// Which login: they are counted.
pub(crate) type LoginNumber = u64;

/// Which login is the latest, and the right to make the next one.
#[derive(Debug, Default)]
pub(crate) struct Login {
    number: AtomicU64,
    renewing: Mutex<()>,
}

impl Login {
    /// The latest login.
    pub(crate) fn number(&self) -> LoginNumber {
        self.number.load(Ordering::Acquire)
    }

    /// Logs in, unless that was done since this login was refused, or is being done.
    pub(crate) async fn renew_after<F>(
        &self,
        refused: LoginNumber,
        log_in: impl FnOnce() -> F,
    ) -> Result<(), Fault>
    where
        F: Future<Output = Result<(), Fault>>,
    {
        let _renewing = self.renewing.lock().await;
        if self.number() == refused {
            log_in().await?;
            self.number.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
}
