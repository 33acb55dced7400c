//! Keys of claims that others delete, or create again.

use std::time::Duration;

use lockkit_conformance::direct::{
    acquire, enqueued, fresh_name, is_entry_gone, is_gave_up, latest_recheck, release,
};
use tokio::time::{Instant, sleep};

use super::{TTL, before_each_txn, first, foreign, of_another_client, session};
use crate::client::scripted::{Fate, Script};

/// Nobody would grant it the lock.
#[tokio::test(start_paused = true)]
async fn waiter_behind_several_others_finds_its_key_gone() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let others = [foreign(&name), format!("{}2", foreign(&name))];
    for key in &others {
        script.put(key, "");
    }
    let waiting = enqueued(&session, &name).await;
    let own = script.keys("lockkit/test").into_iter().find(|key| !others.contains(key)).unwrap();
    let since = Instant::now();
    script.delete(&own);
    assert!(is_entry_gone(&waiting.ends().await));
    assert!(since.elapsed() <= latest_recheck(TTL) + Duration::from_secs(1), "{:?}", since.elapsed());
}

/// One finds that others are there, one finds its own key created again, and one deletes that.
#[tokio::test(start_paused = true)]
async fn release_whose_key_was_created_again_takes_three_transactions() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let held = acquire(&session, &name).await;
    let own = script.keys("lockkit/test")[0].clone();
    script.delete(&own);
    script.put(&own, "");
    script.take_calls();
    release(&session, &held).await;
    assert_eq!((script.count("Txn"), script.keys("lockkit/test").len()), (3, 0));
}

/// Nobody between the two has to be watched: the earlier claim leaves first.
#[tokio::test(start_paused = true)]
async fn waiter_whose_own_front_gave_up_waits_behind_the_one_before_it() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let held = acquire(&session, &name).await;
    let [middle, last] = [enqueued(&session, &name).await, enqueued(&session, &name).await];
    middle.control.give_up();
    assert!(is_gave_up(&middle.ends().await));
    script.take_calls();
    sleep(Duration::from_secs(1)).await;
    assert_eq!((script.count("Range"), script.count("Watch")), (0, 0));
    release(&session, &held).await;
    release(&session, &last.granted().await).await;
}

/// The next one in the queue gives up between each look and its transaction.
#[tokio::test(start_paused = true)]
async fn release_whose_handoffs_fail_ends_without_one() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let held = acquire(&session, &name).await;
    let own = script.keys("lockkit/test")[0].clone();
    let mut next = of_another_client(&name);
    script.put(&next, "");
    let changing = script.clone();
    script.take_calls();
    script.rule(before_each_txn(move || {
        changing.delete(&next);
        next = of_another_client(&name);
        changing.put(&next, "");
    }));
    release(&session, &held).await;
    assert_eq!((script.count("Txn"), script.keys(&own).len()), (9, 0));
    script.serve();
}

/// With the old one it would be refused, and sent again.
#[tokio::test(start_paused = true)]
async fn claim_after_an_epoch_bump_carries_the_new_epoch() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    script.rule(first(1, "Txn", Fate::Unanswered));
    release(&session, &acquire(&session, &name).await).await;
    script.take_calls();
    let held = acquire(&session, &name).await;
    assert_eq!(script.count("Txn"), 1);
    release(&session, &held).await;
}

/// No event and no read of the queue is needed.
#[tokio::test(start_paused = true)]
async fn reply_to_a_release_grants_the_next_claim_of_the_same_client() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let held = acquire(&session, &name).await;
    let next = enqueued(&session, &name).await;
    sleep(Duration::from_secs(1)).await;
    let since = Instant::now();
    release(&session, &held).await;
    let held = next.granted().await;
    assert_eq!(since.elapsed(), Duration::ZERO);
    release(&session, &held).await;
}
