//! The login of a client, which all of its requests share.
//!
//! etcd refuses a request if its token has expired, was forgotten in a restart, or is older than the last change of any
//! user or role. A login costs the server some hundred times as much as a request, because it checks the password with
//! a slow hash. So requests that are refused together log in once.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::error::RequestError;

/// The number of a login; logins are counted.
pub(crate) type LoginNumber = u64;

/// The number of the latest login, and the mutex of those who renew it.
#[derive(Debug, Default)]
pub(crate) struct SharedLogin {
    number: AtomicU64,
    renewing: Mutex<()>,
}

impl SharedLogin {
    /// Returns the number of the latest login.
    pub(crate) fn number(&self) -> LoginNumber {
        self.number.load(Ordering::Acquire)
    }

    /// Logs in, unless another request has logged in since this login was refused. Waits for a login that is under way.
    pub(crate) async fn renew_after<F>(
        &self,
        refused: LoginNumber,
        log_in: impl FnOnce() -> F,
    ) -> Result<(), RequestError>
    where
        F: Future<Output = Result<(), RequestError>>,
    {
        let _renewing = self.renewing.lock().await;
        if self.number() == refused {
            log_in().await?;
            self.number.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
}
