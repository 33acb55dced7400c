//! Log messages for operators.

use std::time::Duration;

use lockkit_conformance::direct::LogText;
use lockkit_testbed::ZooKeeper;
use tracing::Level;

use crate::common::{LONG, acquire, name, node, release, session, shared};

/// Half of the numbers of a directory.
const HALF: i32 = 1 << 30;

/// The runtime has only this thread.
#[tokio::test]
async fn half_used_directory_is_warned_of_once() {
    let server = ZooKeeper::start_numbered("/lockkit/x", HALF - 1).unwrap();
    let (session, name, log) =
        (session(&server, LONG).await, name("x"), LogText::of_this_thread(Level::WARN));
    let warnings = || {
        let text = log.text();
        text.lines().filter(|line| line.contains(" WARN ") && line.contains(&node(&name))).count()
    };
    let mut warned = Vec::new();
    for _ in 0..3 {
        release(&session, &acquire(&session, &name).await).await;
        warned.push(warnings());
    }
    assert_eq!(warned, [0, 1, 1], "{}", log.text());
}

/// The servers grant ten minutes at most.
#[tokio::test]
async fn session_that_is_shorter_than_requested_is_warned_of() {
    let log = LogText::of_this_thread(Level::WARN);
    let session = session(shared(), 11 * 60 * Duration::from_secs(1)).await;
    assert_eq!(session.ttl(), 10 * 60 * Duration::from_secs(1));
    assert!(log.text().contains("granted a shorter session"), "{}", log.text());
}
