//! What lockkit alone is measured for: W5 to W9. Each file has both ends: what a process of its own does, and what the
//! benchmark makes of it.

pub(crate) mod holds;
pub(crate) mod loss;
pub(crate) mod reentry;
pub(crate) mod sale;
pub(crate) mod takeover;

use std::time::Duration;

use lockkit::{LockClient, backend::BackendUrl, redis};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::backend::{self, Backend};

/// Longest time until a process of lockkit is ready, or has a result that it should have at once.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How a process of lockkit connects.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ConnectArguments {
    url: String,
    ttl_ms: u64,
}

impl ConnectArguments {
    pub(crate) fn new(backend: Backend, addresses: &[String], ttl: Duration) -> Self {
        Self { url: backend::url(backend.name(), addresses), ttl_ms: ttl.as_millis() as u64 }
    }

    fn is_file(&self) -> bool {
        self.url.starts_with("file:")
    }

    pub(crate) async fn open(&self) -> lockkit::Result<LockClient> {
        lockkit::builder(&self.url)?.ttl(Duration::from_millis(self.ttl_ms)).build().await
    }

    /// Sets new servers up, as `lockkit init` does, where they need it.
    pub(crate) async fn set_up(&self, backend: Backend) -> lockkit::Result<()> {
        if backend == Backend::Redlock {
            let config = redis::RedlockConfig::from_url(BackendUrl::parse(&self.url)?)?;
            redis::init(&config).await?;
        }
        Ok(())
    }
}

/// Returns the time on a clock that all processes of this machine share.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
