//! What a client is made of, and how long it waits for its first session.

use std::{sync::Arc, time::Duration};

use super::Runtime;
use crate::{Clock, backend::Backend};

/// The parts of a client.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) ttl: Duration,
    pub(crate) label: Option<String>,
    pub(crate) clock: Clock,
    pub(crate) runtime: Runtime,
    pub(crate) connect_policy: ConnectPolicy,
}

/// How long a client waits for a store that does not answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectPolicy {
    /// One attempt.
    OneAttempt,
    /// Attempts until this time limit.
    Until(tokio::time::Instant),
    /// Attempts without a time limit.
    Unlimited,
    /// No wait: the first session is opened in the background.
    Lazy,
}
