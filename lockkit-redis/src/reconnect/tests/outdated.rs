//! When the masters of a cluster are compared.

use super::*;

#[tokio::test]
async fn connection_that_answers_every_request_is_kept() {
    let redis = Redis::start().unwrap();
    let reconnector = to(&redis, Arc::new(()));
    let open = reconnector.open().await.unwrap();
    tokio::time::pause();
    let for_long = MASTER_CHECK_PAUSE * MASTER_CHECKS * 100;
    tokio::time::timeout(for_long, reconnector.until_outdated(&open)).await.unwrap_err();
}

/// The nodes may name the masters that were compared, while the client crate uses another one.
#[tokio::test]
async fn lasting_silence_replaces_a_connection_after_twice_as_many_checks_each_time() {
    let redis = Redis::start().unwrap();
    let reconnector = to(&redis, Arc::new(()));
    let mut open = reconnector.open().await.unwrap();
    tokio::time::pause();
    for checks in [MASTER_CHECKS, 2 * MASTER_CHECKS] {
        let start = Instant::now();
        let silent_for_long = async {
            let mut until_outdated = std::pin::pin!(reconnector.until_outdated(&open));
            loop {
                open.health.unanswered.notify_one();
                let next = tokio::time::timeout(MASTER_CHECK_PAUSE / 4, until_outdated.as_mut()).await;
                if let Ok(next) = next {
                    break next;
                }
            }
        };
        let next = silent_for_long.await;
        let (shortest, took) = (MASTER_CHECK_PAUSE * checks, start.elapsed());
        assert_eq!(next, 2 * checks);
        assert!(took >= shortest && took <= shortest * 11 / 10, "{checks} checks took {took:?}");
        open.master_checks = next;
    }
}
