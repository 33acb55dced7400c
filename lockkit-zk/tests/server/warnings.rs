//! Messages for operators, in logs and errors.

use std::time::Duration;

use lockkit_conformance::direct::LogText;
use lockkit_core::ErrorKind;
use lockkit_testbed::ZooKeeper;
use tracing::Level;

use crate::{
    common::{LONG, acquire, assert_error, bounded, name, node, release, session, shared, start},
    refusals::unreleasable,
};

/// Half of the numbers of a directory.
const HALF: i32 = 1 << 30;

/// The first number that is refused.
const REFUSED: i32 = i32::MAX - (1 << 16) + 1;

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

/// It is the directory that an operator must delete.
#[tokio::test(flavor = "multi_thread")]
async fn refusal_for_want_of_numbers_names_the_directory() {
    let server = ZooKeeper::start_numbered("/lockkit/x", REFUSED).unwrap();
    let (session, name) = (session(&server, LONG).await, name("x"));
    let error = start(&session, &name).ends().await.unwrap_err();
    assert_error(&error, ErrorKind::Unavailable, "/lockkit/x has no sequence numbers left");
    assert_eq!((error.operation(), error.lock()), ("acquire", Some(&name)), "{error}");
}

/// Its holds end with it, and only the log says why.
#[tokio::test]
async fn session_that_may_not_delete_its_nodes_is_warned_of() {
    let log = LogText::of_this_thread(Level::WARN);
    let (session, name) = unreleasable().await;
    let held = acquire(&session, &name).await;
    bounded(session.release(&held)).await.unwrap_err();
    assert!(log.text().contains("session abandoned: the server refuses"), "{}", log.text());
    bounded(session.close()).await.unwrap();
}

/// The servers grant ten minutes at most.
#[tokio::test]
async fn session_that_is_shorter_than_requested_is_warned_of() {
    let log = LogText::of_this_thread(Level::WARN);
    let session = session(shared(), 11 * 60 * Duration::from_secs(1)).await;
    assert_eq!(session.ttl(), 10 * 60 * Duration::from_secs(1));
    assert!(log.text().contains("granted a shorter session"), "{}", log.text());
}
