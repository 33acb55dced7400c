//! What is known of earlier connections.

use super::*;
use crate::tests::scripted::{Answer, ScriptedServer, greeting};

/// Else a silent node would make its clients connect to all nodes again every few seconds.
#[tokio::test]
async fn replacement_of_a_silent_connection_has_twice_its_checks() {
    let redis = Redis::start().unwrap();
    let reconnector = to(&redis, Arc::new(()));
    let mut open = reconnector.open().await.unwrap();
    open.master_checks = 1;
    open.health.unanswered.notify_one();
    let next = tokio::time::timeout(HANG, reconnector.replacement(&open)).await.expect("it is replaced");
    assert_eq!(next.master_checks, 2);
}

/// Also without a script: a client may only have observed.
#[tokio::test(start_paused = true)]
async fn connection_that_has_lasted_has_served() {
    let health = silent_connection(PushHandler::ignore_all()).await.health;
    assert!(!health.has_served());
    tokio::time::sleep(RETRY_PAUSE_MAX + Duration::from_millis(2)).await;
    assert!(health.has_served());
}

/// Else a try would be repeated for as long as no connection can be opened: the server may have its request.
#[tokio::test]
async fn connection_that_ends_at_its_subscription_has_sent_no_request() {
    let server = ScriptedServer::start(|_| {
        |_, words: &[String]| match &*words[0] {
            "SUBSCRIBE" => Answer::EndOfConnection,
            _ => greeting(words),
        }
    });
    let connector = Connector {
        topology: Topology::Single(server.await.address),
        dialer: Dialer { login: Login::default(), tls: None, timeout: 2 * HANG },
        sentinel_login: Login::default(),
        cluster_retries: 0,
    };
    let reconnector = Reconnector { connector, listener: Arc::new(vec!["channel".to_owned()]) };
    let fault = tokio::time::timeout(HANG, reconnector.open()).await.unwrap().err().unwrap();
    assert!(fault.is_transient() && !fault.may_have_executed(), "{fault:?}");
}
