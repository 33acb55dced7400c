//! The ends of pinned holds.

use std::time::Duration;

use lockkit_conformance::direct::{acquire, fresh_name, release, start};
use tokio::time::{Instant, advance, sleep};

use super::{TTL, of_another_client, session};
use crate::client::scripted::Script;

/// If its key went with the lease of the pin, the next client would have to find that out.
#[tokio::test(start_paused = true)]
async fn release_of_a_pinned_hold_hands_the_lock_off() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let held = acquire(&session, &name).await;
    assert!(session.pins().unwrap().pin(&held, TTL).await.unwrap());
    script.put(&of_another_client(&name), "");
    release(&session, &held).await;
    assert_eq!(script.keys("lockkit/:clients/af/"), ["lockkit/:clients/af/mailbox"]);
    assert_eq!((script.keys("lockkit/test").len(), script.leases()), (1, 1));
}

/// Nothing keeps the lock any longer.
#[tokio::test(start_paused = true)]
async fn hold_that_is_left_after_the_end_of_its_pin_is_released() {
    let script = Script::default();
    let session = session(&script).await;
    let held = acquire(&session, &fresh_name()).await;
    let pins = session.pins().unwrap();
    assert!(pins.pin(&held, TTL / 2).await.unwrap());
    advance(TTL / 2 + Duration::from_secs(1)).await;
    pins.leave(&held).await.unwrap();
    assert_eq!((script.keys("lockkit/test").len(), script.leases()), (0, 1));
}

/// Its client has no claim any more that would wake the waiter.
#[tokio::test(start_paused = true)]
async fn waiter_behind_a_hold_that_its_client_has_left_watches_its_key() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let held = acquire(&session, &name).await;
    let pins = session.pins().unwrap();
    assert!(pins.pin(&held, TTL).await.unwrap());
    pins.leave(&held).await.unwrap();
    let key = script.keys("lockkit/test")[0].clone();
    let waiting = start(&session, &name);
    sleep(Duration::from_secs(1)).await;
    let since = Instant::now();
    script.delete(&key);
    release(&session, &waiting.granted().await).await;
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}
