//! What a close sends.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::direct::{acquire, bounded, fresh_name};
use lockkit_core::{
    backend::{Grant, Session},
    limits::CLOSE_ANSWER_MAX,
};
use tokio::time::Instant;
use tonic::Code;

use super::{TTL, busy, config, first, queue_session, session, session_of, times};
use crate::client::scripted::{Fate, Script};

const REFUSED: Fate = Fate::Refused(Code::Unavailable, "etcdserver: request timed out");

/// Pins a lock for long, and releases it without a reply.
async fn unconfirmed(session: &Arc<dyn Session>, script: &Script) -> Grant {
    let held = acquire(session, &fresh_name()).await;
    assert!(session.pins().unwrap().pin(&held, TTL * 60).await.unwrap());
    script.rule(busy("Txn"));
    session.release(&held).await.unwrap_err();
    script.serve();
    held
}

#[tokio::test(start_paused = true)]
async fn close_repeats_the_revocation_of_a_released_pin_once() {
    for (failures, left) in [(0, 0), (1, 0), (2, 1)] {
        let script = Script::default();
        let session = session(&script).await;
        unconfirmed(&session, &script).await;
        script.take_calls();
        script.rule(first(failures, "LeaseRevoke", REFUSED));
        bounded(session.close()).await.unwrap();
        assert_eq!(script.leases(), left, "after {failures} failures");
        assert_eq!(script.keys("").len(), left);
        // That of the session is the last one.
        assert_eq!(script.count("LeaseRevoke"), failures.min(1) + 2);
    }
}

/// Nothing that the server refuses for good is repeated.
#[tokio::test(start_paused = true)]
async fn close_does_not_repeat_a_revocation_that_is_refused() {
    let script = Script::default();
    let session = session(&script).await;
    unconfirmed(&session, &script).await;
    script.take_calls();
    script.rule(first(
        1,
        "LeaseRevoke",
        Fate::Refused(Code::PermissionDenied, "etcdserver: permission denied"),
    ));
    bounded(session.close()).await.unwrap();
    assert_eq!((script.count("LeaseRevoke"), script.leases()), (2, 1));
}

/// However many pins there are, and however long a request may take.
#[tokio::test(start_paused = true)]
async fn revocations_of_pins_leave_a_close_half_of_its_time() {
    let script = Script::default();
    let session: Arc<dyn Session> =
        session_of(&script, &config(1).request_timeout(Duration::from_secs(60))).await;
    for _ in 0..3 {
        unconfirmed(&session, &script).await;
    }
    script.take_calls();
    script.rule(first(3, "LeaseRevoke", Fate::Lost));
    let since = Instant::now();
    bounded(session.close()).await.unwrap();
    let half = CLOSE_ANSWER_MAX / 2;
    assert_eq!(times(&script, "LeaseRevoke", since), [Duration::ZERO, Duration::ZERO, Duration::ZERO, half]);
}

#[tokio::test(start_paused = true)]
async fn close_of_a_session_whose_lease_has_ended_succeeds() {
    let script = Script::default();
    let session = queue_session(&script).await;
    session.lease.revoke(&session.server).await.unwrap();
    session.close().await.unwrap();
    script.rule(first(9, "LeaseRevoke", REFUSED));
    session.close().await.unwrap_err();
}

/// The keeper awaits the stream's end by dropping the session.
#[tokio::test(start_paused = true)]
async fn session_that_is_dropped_sends_nothing_more() {
    let script = Script::default();
    drop(session(&script).await);
    tokio::task::yield_now().await;
    script.take_calls();
    script.end_watches();
    tokio::time::sleep(TTL).await;
    assert!(script.take_calls().is_empty());
}

/// The hold was released, so the session's lease may end its pin.
#[tokio::test(start_paused = true)]
async fn released_pin_that_was_moved_back_does_not_keep_the_lease_of_its_session() {
    for is_released in [true, false] {
        let script = Script::default();
        let session = session(&script).await;
        let held = acquire(&session, &fresh_name()).await;
        assert!(session.pins().unwrap().pin(&held, TTL / 2).await.unwrap());
        session.renew(std::slice::from_ref(&held)).await;
        script.rule(busy("Txn"));
        if is_released {
            session.release(&held).await.unwrap_err();
        }
        script.serve();
        bounded(session.close()).await.unwrap();
        assert_eq!(script.keys("").is_empty(), is_released);
    }
}

/// Whichever of the two leases the key has when it is left.
#[tokio::test(start_paused = true)]
async fn left_pin_whose_move_was_not_answered_outlives_the_session() {
    let script = Script::default();
    let session = session(&script).await;
    let held = acquire(&session, &fresh_name()).await;
    let pins = session.pins().unwrap();
    assert!(pins.pin(&held, TTL / 2).await.unwrap());
    script.rule(|call| if call.is("Txn") && call.puts() { Fate::Unanswered } else { Fate::Served });
    session.renew(std::slice::from_ref(&held)).await;
    script.serve();
    pins.leave(&held).await.unwrap();
    bounded(session.close()).await.unwrap();
    assert_eq!(script.keys("lockkit/test").len(), 1);
}

/// Nothing needs that lease any more.
#[tokio::test(start_paused = true)]
async fn pin_that_has_ended_does_not_keep_the_lease_of_its_session() {
    let script = Script::default();
    let session = session(&script).await;
    let held = acquire(&session, &fresh_name()).await;
    assert!(session.pins().unwrap().pin(&held, TTL / 2).await.unwrap());
    session.renew(std::slice::from_ref(&held)).await;
    tokio::time::advance(TTL / 2).await;
    bounded(session.close()).await.unwrap();
    assert!(script.keys("").is_empty());
}

/// Whichever of the two leases its key has.
#[tokio::test(start_paused = true)]
async fn held_pin_whose_move_was_not_answered_outlives_the_session() {
    let script = Script::default();
    let session = session(&script).await;
    let held = acquire(&session, &fresh_name()).await;
    assert!(session.pins().unwrap().pin(&held, TTL / 2).await.unwrap());
    script.rule(|call| if call.is("Txn") && call.puts() { Fate::Unanswered } else { Fate::Served });
    session.renew(std::slice::from_ref(&held)).await;
    script.serve();
    bounded(session.close()).await.unwrap();
    assert_eq!(script.keys("lockkit/test").len(), 1);
}
