use lockkit_conformance::direct::{acquire, fresh_name};
use lockkit_core::backend::Session;

use super::*;
use crate::{
    client::scripted::{Fate, Script},
    session::tests::{TTL, busy, config, queue_session, session_of},
};

/// Returns a session at a scripted server, and its hold.
async fn held(script: &Script) -> (Arc<EtcdSession>, Grant, Arc<QueueEntry>) {
    let session = queue_session(script).await;
    let held = acquire(&(session.clone() as Arc<dyn Session>), &fresh_name()).await;
    let entry = session.claims.get(held.claim()).unwrap();
    (session, held, entry)
}

#[tokio::test(start_paused = true)]
async fn shorter_pin_does_not_shorten_an_earlier_one() {
    let script = Script::default();
    let (session, held, entry) = held(&script).await;
    session.pin(&held, TTL * 10).await.unwrap();
    let until = entry.held.pin().unwrap().until;
    session.pin(&held, TTL).await.unwrap();
    assert_eq!(entry.held.pin().unwrap().until, until);
    assert!(entry.held.pin().unwrap().ends >= until);
}

/// Otherwise the hold would end before its key can be moved back.
#[tokio::test(start_paused = true)]
async fn hold_is_believed_for_the_whole_of_a_long_pin() {
    let script = Script::default();
    let (session, held, entry) = held(&script).await;
    session.pin(&held, 100_000 * TTL).await.unwrap();
    let pin = entry.held.pin().unwrap();
    assert!(pin.until <= pin.ends && pin.ends < pin.lease.armed_at().after(pin.lease.ttl()), "{pin:?}");
}

/// The key may still be attached to the lease of the earlier pin.
#[tokio::test(start_paused = true)]
async fn hold_is_believed_for_the_shorter_of_two_pins_until_the_second_is_confirmed() {
    let script = Script::default();
    let (session, held, entry) = held(&script).await;
    session.pin(&held, TTL).await.unwrap();
    let first = entry.held.pin().unwrap().ends;
    script.rule(busy("Txn"));
    session.pin(&held, TTL * 10).await.unwrap_err();
    let armed_at = session.lease.now().after(TTL * 5);
    assert_eq!(session.renewed_at_most(held.claim(), armed_at), first.before(TTL));
    script.serve();
    session.pin(&held, TTL * 10).await.unwrap();
    assert_eq!(session.renewed_at_most(held.claim(), armed_at), armed_at);
}

/// The heartbeat of the other holds does not wait for them.
#[tokio::test(start_paused = true)]
async fn moves_of_a_heartbeat_end_with_its_step() {
    let script = Script::default();
    let long = config(1).request_timeout(TTL);
    let session = session_of(&script, &long).await;
    let held = acquire(&(session.clone() as Arc<dyn Session>), &fresh_name()).await;
    session.pin(&held, Duration::from_secs(1)).await.unwrap();
    script.rule(|_| Fate::Lost);
    let (step, since) = (Duration::from_secs(2), tokio::time::Instant::now());
    session.end_pins(&[held], session.lease.now().after(TTL), step).await;
    assert_eq!(since.elapsed(), step);
}

/// The key was moved, and would end with the session.
#[tokio::test(start_paused = true)]
async fn key_that_is_left_after_a_move_without_an_answer_outlasts_the_session() {
    let script = Script::default();
    let (session, held, entry) = held(&script).await;
    session.pin(&held, Duration::from_secs(1)).await.unwrap();
    script.rule(|call| if call.is("Txn") { Fate::Unanswered } else { Fate::Served });
    let (armed_at, held) = (session.lease.now().after(TTL), [held]);
    session.end_pins(&held, armed_at, Duration::from_millis(500)).await;
    script.serve();
    let ends_with_session =
        async || session.lease.keys(&session.server).await.unwrap().contains(&entry.key.clone().into_bytes());
    assert!(ends_with_session().await);
    session.leave(&held[0]).await.unwrap();
    assert!(!ends_with_session().await);
}

/// A heartbeat that has chosen it before would move its key back.
#[tokio::test(start_paused = true)]
async fn hold_that_was_left_has_no_pin_to_end() {
    let script = Script::default();
    let (session, held, entry) = held(&script).await;
    session.pin(&held, TTL).await.unwrap();
    session.leave(&held).await.unwrap();
    assert!(entry.held.pin().is_none());
}

/// Its key would end with the session.
#[tokio::test(start_paused = true)]
async fn hold_that_is_left_while_a_heartbeat_waits_is_not_moved_back() {
    let script = Script::default();
    let (session, held, entry) = held(&script).await;
    session.pin(&held, Duration::from_secs(1)).await.unwrap();
    let leaving = entry.held.one_at_a_time.lock().await;
    let armed_at = session.lease.now().after(TTL);
    script.take_calls();
    let (grants, step) = ([held], TTL);
    let moving = session.end_pins(&grants, armed_at, step);
    tokio::join!(moving, async {
        tokio::task::yield_now().await;
        entry.held.forget_pin();
        drop(leaving);
    });
    assert_eq!(script.count("Txn"), 0);
}

/// A pin may last for a week.
#[tokio::test(start_paused = true)]
async fn hold_that_ended_before_it_is_left_keeps_no_new_lease() {
    let script = Script::default();
    let (session, held, entry) = held(&script).await;
    session.pin(&held, Duration::from_secs(1)).await.unwrap();
    session.renew(std::slice::from_ref(&held)).await;
    assert_eq!(entry.held.pin().unwrap().attached_to, AttachedTo::Session);
    let leases = script.leases();
    script.delete(&entry.key);
    session.leave(&held).await.unwrap();
    assert_eq!(script.leases(), leases);
}

#[tokio::test(start_paused = true)]
async fn key_that_was_moved_back_is_not_moved_again() {
    let script = Script::default();
    let (session, held, _) = held(&script).await;
    session.pin(&held, Duration::from_secs(1)).await.unwrap();
    let held = [held];
    for moves in [1, 0] {
        script.take_calls();
        session.renew(&held).await;
        let calls = script.take_calls();
        assert_eq!(calls.iter().filter(|call| call.is("Txn") && call.puts()).count(), moves);
    }
}

/// Another rewrite of the key would fail the compare of this one.
#[tokio::test(start_paused = true)]
async fn pin_excludes_other_rewrites_of_its_key_until_it_is_answered() {
    let script = Script::default();
    let (session, held, entry) = held(&script).await;
    script.rule(|call| if call.is("LeaseGrant") { Fate::Lost } else { Fate::Served });
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        entry.held.one_at_a_time.try_lock().is_err()
    };
    let (pinned, is_taken) = tokio::join!(session.pin(&held, TTL), meanwhile);
    assert!(pinned.is_err() && is_taken);
    assert!(entry.held.one_at_a_time.try_lock().is_ok());
}

/// Those of many holds would not end in a step.
#[tokio::test(start_paused = true)]
async fn moves_of_several_holds_do_not_wait_for_each_other() {
    let script = Script::default();
    let (session, first, _) = held(&script).await;
    let pinned = [first, acquire(&(session.clone() as Arc<dyn Session>), &fresh_name()).await];
    for grant in &pinned {
        session.pin(grant, Duration::from_secs(1)).await.unwrap();
    }
    script.rule(|call| if call.is("Txn") { Fate::Lost } else { Fate::Served });
    script.take_calls();
    session.end_pins(&pinned, session.lease.now().after(TTL), Duration::from_secs(1)).await;
    assert_eq!(script.count("Txn"), pinned.len());
}
