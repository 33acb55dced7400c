//! Sessions at a real server, for tests of what a session keeps.

use std::sync::OnceLock;

use lockkit_testbed::ZooKeeper;

use super::*;
use crate::Form;

/// Longer than any test.
const TTL: Duration = Duration::from_secs(120);

/// More than a request takes on a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn shared() -> &'static ZooKeeper {
    static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
    SHARED.get_or_init(|| ZooKeeper::start().unwrap())
}

pub(super) async fn session_at(endpoint: &str, form: Form) -> Arc<ZkSession> {
    let config = ZkConfig::new([endpoint]).unwrap().form(form).request_timeout(REQUEST_TIMEOUT);
    Arc::new(ZkSession::open(&config, Arc::default(), TTL, Clock::boot()).await.unwrap())
}
