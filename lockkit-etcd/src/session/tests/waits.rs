//! Claims that wait or give up.

use std::time::Duration;

use lockkit_conformance::direct::{
    acquire, bounded, earliest_recheck, enqueued, fresh_name, is_entry_gone, is_gave_up, latest_recheck,
    release, start, try_acquire,
};
use lockkit_core::{LockName, backend::Session};
use tokio::time::{Instant, advance, sleep};

use super::{TTL, after_requests, busy, config, foreign, of_another_client, session, session_of, times};
use crate::{
    EtcdConfig, Form, Names,
    client::scripted::{Fate, Script},
};

/// The last pauses between retries are longer than a second.
#[tokio::test(start_paused = true)]
async fn claim_that_gives_up_between_two_retries_ends_at_once() {
    for form in [Form::Queue, Form::Single] {
        let script = Script::default();
        let session: std::sync::Arc<dyn Session> = session_of(&script, &config(1).form(form)).await;
        script.rule(busy("Txn"));
        let pending = start(&session, &fresh_name());
        after_requests(&script, "Txn", 8).await;
        let (since, control) = (Instant::now(), pending.control.clone());
        control.give_up();
        assert!(is_gave_up(&pending.ends().await));
        assert_eq!(since.elapsed(), Duration::ZERO, "{form:?}");
    }
}

/// Eight retries take 50 ms, 100 ms, ... at least.
#[tokio::test(start_paused = true)]
async fn enqueue_read_and_withdrawal_are_retried_with_growing_pauses() {
    let script = Script::default();
    let (session, name) = (session(&script).await, fresh_name());
    script.put(&foreign(&name), "");
    for method in ["Txn", "Range", "Txn of a withdrawal"] {
        let is_withdrawal = method.contains(' ');
        let method = method.split(' ').next().unwrap();
        let waiting = if is_withdrawal { Some(enqueued(&session, &name).await) } else { None };
        script.take_calls();
        script.rule(busy(method));
        let since = Instant::now();
        let waiting = waiting.unwrap_or_else(|| start(&session, &name));
        if is_withdrawal {
            waiting.control.give_up();
        }
        after_requests(&script, method, 9).await;
        assert!(since.elapsed() > Duration::from_secs(3), "{method} {:?}", since.elapsed());
        script.serve();
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
    }
    assert_eq!(script.keys("lockkit/test"), [foreign(&name)]);
}

#[tokio::test(start_paused = true)]
async fn new_waiter_looks_for_its_predecessor_after_a_tenth_of_a_second() {
    for (names, looks_after) in [(Names::Encoded, 100), (Names::Raw, 0)] {
        let script = Script::default();
        let session: std::sync::Arc<dyn Session> =
            session_of(&script, &config(1).prefix("lockkit").names(names)).await;
        let name = fresh_name();
        script.put(&of_another_client(&name), "");
        script.take_calls();
        let since = Instant::now();
        let waiting = start(&session, &name);
        after_requests(&script, "Watch", 1).await;
        let looks_after = Duration::from_millis(looks_after);
        assert_eq!(times(&script, "Range", since), [looks_after], "{names:?}");
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
    }
}

/// A client whose key is deleted writes a handoff, most probably; another program writes none.
#[tokio::test(start_paused = true)]
async fn waiter_whose_predecessor_was_deleted_reads_the_queue_after_its_grace() {
    for (is_client, grace) in [(true, 50), (false, 0)] {
        let script = Script::default();
        let (session, name) = (session(&script).await, fresh_name());
        let predecessor = if is_client { of_another_client(&name) } else { foreign(&name) };
        script.put(&predecessor, "");
        let waiting = start(&session, &name);
        after_requests(&script, "Watch", 1).await;
        script.take_calls();
        let since = Instant::now();
        script.delete(&predecessor);
        release(&session, &waiting.granted().await).await;
        assert_eq!(times(&script, "Range", since)[0], Duration::from_millis(grace));
    }
}

/// Behind its own claim a waiter has no watch.
#[tokio::test(start_paused = true)]
async fn waiter_behind_a_claim_of_its_client_looks_as_soon_as_that_has_left() {
    let script = Script::default();
    let (session, name) = (session(&script).await, fresh_name());
    script.put(&foreign(&name), "");
    let front = enqueued(&session, &name).await;
    let behind = enqueued(&session, &name).await;
    sleep(Duration::from_secs(1)).await;
    script.take_calls();
    let since = Instant::now();
    front.control.give_up();
    assert!(is_gave_up(&front.ends().await));
    after_requests(&script, "Watch", 1).await;
    let looks = times(&script, "Range", since);
    assert!(looks[0] <= Duration::from_millis(100), "{looks:?}");
    script.delete(&foreign(&name));
    release(&session, &behind.granted().await).await;
}

/// As when an operator breaks the hold of a claim that does not know of its grant yet.
#[tokio::test(start_paused = true)]
async fn waiter_behind_a_claim_of_its_client_reads_the_queue_when_it_is_notified() {
    let script = Script::default();
    let queue = super::queue_session(&script).await;
    let (session, name): (std::sync::Arc<dyn Session>, _) = (queue.clone(), fresh_name());
    script.put(&foreign(&name), "");
    let [front, behind] = [enqueued(&session, &name).await, enqueued(&session, &name).await];
    sleep(Duration::from_secs(1)).await;
    script.take_calls();
    queue.claims.get(behind.claim.id()).unwrap().predecessor_gone(0);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(script.count("Range"), 1);
    for waiting in [behind, front] {
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
    }
}

/// The predecessor was a waiter too.
#[tokio::test(start_paused = true)]
async fn deletion_of_a_predecessor_makes_its_waiter_read_once() {
    let script = Script::default();
    let (session, name) = (session(&script).await, fresh_name());
    let predecessor = format!("{}2", foreign(&name));
    script.put(&foreign(&name), "");
    script.put(&predecessor, "");
    let waiting = start(&session, &name);
    after_requests(&script, "Watch", 1).await;
    script.take_calls();
    script.delete(&predecessor);
    sleep(Duration::from_secs(1)).await;
    assert_eq!((script.count("Range"), waiting.is_waiting()), (1, true));
    script.delete(&foreign(&name));
    release(&session, &waiting.granted().await).await;
}

/// An event can arrive before its revision is readable. After a restore from a backup that revision never is.
#[tokio::test(start_paused = true)]
async fn read_that_is_older_than_its_event_is_repeated_some_times() {
    let script = Script::default();
    let queue = super::queue_session(&script).await;
    let (session, name): (std::sync::Arc<dyn Session>, _) = (queue.clone(), fresh_name());
    script.put(&foreign(&name), "");
    let waiting = start(&session, &name);
    after_requests(&script, "Watch", 1).await;
    script.take_calls();
    let since = Instant::now();
    queue.claims.get(waiting.claim.id()).unwrap().predecessor_gone(1_000_000);
    sleep(Duration::from_secs(5)).await;
    let reads = times(&script, "Range", since);
    assert_eq!(reads.len(), 5, "{reads:?}");
    assert!(reads.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_millis(50)), "{reads:?}");
    script.delete(&foreign(&name));
    release(&session, &waiting.granted().await).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_recheck_once_per_pause() {
    let script = Script::default();
    let (session, name) = (session(&script).await, fresh_name());
    script.put(&foreign(&name), "");
    let [front, behind] = [enqueued(&session, &name).await, enqueued(&session, &name).await];
    sleep(Duration::from_secs(1)).await;
    script.take_calls();
    let since = Instant::now();
    sleep(latest_recheck(TTL) * 5).await;
    let rechecks = times(&script, "Txn", since);
    assert!((10..=14).contains(&rechecks.len()), "{rechecks:?}");
    // The first of them has waited for less than two seconds before.
    assert!(rechecks[0] >= earliest_recheck(TTL) - Duration::from_secs(2));
    for waiting in [behind, front] {
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
    }
}

/// The next re-check of a waiter whose own key or predecessor is gone reads the queue, although no event came.
#[tokio::test(start_paused = true)]
async fn recheck_finds_either_key_gone() {
    for own in [true, false] {
        let script = Script::default();
        let (session, name) = (session(&script).await, fresh_name());
        script.put(&foreign(&name), "");
        let waiting = enqueued(&session, &name).await;
        after_requests(&script, "Watch", 1).await;
        script.mute_watches();
        let own_key = script.keys("lockkit/test").into_iter().find(|key| *key != foreign(&name)).unwrap();
        let since = Instant::now();
        script.delete(&if own { own_key } else { foreign(&name) });
        let end = waiting.ends().await;
        assert_eq!(is_entry_gone(&end), own, "{end:?}");
        assert!(since.elapsed() <= latest_recheck(TTL) + Duration::from_millis(1));
    }
}

/// It waits for the guard key of another program, and its own entry in the queue is not watched.
#[tokio::test(start_paused = true)]
async fn recheck_of_the_first_in_a_guarded_queue_finds_its_entry_gone() {
    let (script, name) = (Script::default(), fresh_name());
    let session: std::sync::Arc<dyn Session> = session_of(&script, &config(1).guard("guards/")).await;
    // While the foreign program has the guard key, its queue is empty.
    script.put(&format!("guards/{name}"), "");
    let waiting = start(&session, &name);
    after_requests(&script, "Watch", 1).await;
    let since = Instant::now();
    script.delete(&script.keys("lockkit/test")[0]);
    assert!(is_entry_gone(&waiting.ends().await));
    assert!(since.elapsed() <= latest_recheck(TTL) + Duration::from_millis(1));
}

/// Returns the forms in which a claim waits for one key, with that key.
fn locks_of_one_key(name: &LockName) -> [(EtcdConfig, String); 2] {
    [
        (config(1).form(Form::Single), format!("lockkit/{name}")),
        (config(1).guard("guards/"), format!("guards/{name}")),
    ]
}

/// The watch begins at the revision that follows the read.
#[tokio::test(start_paused = true)]
async fn key_that_is_deleted_right_after_the_read_is_missed_by_no_watch() {
    let name = fresh_name();
    for (config, key) in locks_of_one_key(&name) {
        let script = Script::default();
        let session: std::sync::Arc<dyn Session> = session_of(&script, &config).await;
        script.put(&key, "");
        let (server, mut found) = (script.clone(), Some(key));
        script.rule(move |call| {
            if call.is("Watch")
                && let Some(key) = found.take()
            {
                server.delete(&key);
            }
            Fate::Served
        });
        let since = Instant::now();
        release(&session, &acquire(&session, &name).await).await;
        assert!(since.elapsed() < earliest_recheck(TTL), "{:?}", since.elapsed());
        // The rule refers to its own server.
        script.serve();
    }
}

/// A try that found the lock held reads the next time, for a second.
#[tokio::test(start_paused = true)]
async fn repeated_try_reads_before_it_writes() {
    for form in [Form::Queue, Form::Single] {
        let script = Script::default();
        let session: std::sync::Arc<dyn Session> = session_of(&script, &config(1).form(form)).await;
        let name = fresh_name();
        let key = if form == Form::Single { format!("lockkit/{name}") } else { foreign(&name) };
        script.put(&key, "");
        for (waited, reads, writes) in [(0, 0, 1), (900, 1, 0), (1_000, 0, 1)] {
            advance(Duration::from_millis(waited)).await;
            script.take_calls();
            assert!(is_gave_up(&try_acquire(&session, &name).await));
            let sent = (script.count("Range"), script.count("Txn"));
            assert_eq!(sent, (reads, writes), "{form:?} after {waited} ms");
        }
        script.delete(&key);
        release(&session, &acquire(&session, &name).await).await;
    }
}

/// Its copies may be executed at any later time.
#[tokio::test(start_paused = true)]
async fn try_whose_reply_was_lost_is_repeated_and_one_that_was_not_sent_is_not() {
    for form in [Form::Queue, Form::Single] {
        let script = Script::default();
        let session: std::sync::Arc<dyn Session> = session_of(&script, &config(1).form(form)).await;
        let reset = "h2 protocol error: http2 error";
        for fate in [Fate::Unanswered, Fate::ExecutedAndRefused(tonic::Code::ResourceExhausted, reset)] {
            script.rule(super::first(1, "Txn", fate));
            let granted = lockkit_conformance::direct::granted(try_acquire(&session, &fresh_name()).await);
            release(&session, &granted).await;
        }
        script.take_calls();
        script.rule(busy("Txn"));
        bounded(try_acquire(&session, &fresh_name())).await.unwrap_err();
        assert_eq!(script.count("Txn"), 1, "{form:?}");
    }
}

/// The revision of its creation may be compacted already.
#[tokio::test(start_paused = true)]
async fn predecessor_is_watched_from_the_revision_after_the_read_that_found_it() {
    let script = Script::default();
    let (queue, name) = (super::queue_session(&script).await, fresh_name());
    let session: std::sync::Arc<dyn Session> = queue.clone();
    script.put(&foreign(&name), "");
    let waiting = enqueued(&session, &name).await;
    after_requests(&script, "Watch", 1).await;
    let calls = script.take_calls();
    let watched = calls
        .iter()
        .filter(|call| call.is("Watch"))
        .find_map(|call| call.watched().filter(|(key, _)| key == foreign(&name).as_bytes()));
    assert_eq!(watched.unwrap().1, queue.server.highest_revision() + 1);
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
}

/// Behind its own claim a waiter has no watch: nothing else shows that its key was deleted.
#[tokio::test(start_paused = true)]
async fn recheck_behind_a_claim_of_its_client_finds_the_key_of_the_waiter_gone() {
    let (script, name) = (Script::default(), fresh_name());
    let queue = super::queue_session(&script).await;
    let session: std::sync::Arc<dyn Session> = queue.clone();
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    let since = Instant::now();
    script.delete(&queue.claims.get(waiting.claim.id()).unwrap().key);
    assert!(is_entry_gone(&waiting.ends().await));
    assert!(since.elapsed() <= latest_recheck(TTL) + Duration::from_millis(1));
    release(&session, &held).await;
}

/// As the waiters of a queue.
#[tokio::test(start_paused = true)]
async fn waiter_for_one_key_rechecks_once_per_pause() {
    let name = fresh_name();
    for (config, key) in locks_of_one_key(&name) {
        let script = Script::default();
        let session: std::sync::Arc<dyn Session> = session_of(&script, &config).await;
        script.put(&key, "");
        let waiting = start(&session, &name);
        after_requests(&script, "Watch", 1).await;
        script.take_calls();
        sleep(latest_recheck(TTL) * 5).await;
        assert!((4..=7).contains(&script.count("Txn")), "{key}: {}", script.count("Txn"));
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
    }
}

/// A login costs a server much, so it may be too busy for that.
#[tokio::test(start_paused = true)]
async fn claim_waits_while_its_login_cannot_be_renewed() {
    const LOGINS: usize = 3;
    for form in [Form::Queue, Form::Single] {
        let script = Script::default();
        let session: std::sync::Arc<dyn Session> = session_of(&script, &config(1).form(form)).await;
        let mut refused = 0;
        script.rule(move |call| match &*call.method {
            "Txn" if refused < LOGINS => {
                Fate::Refused(tonic::Code::Unauthenticated, "etcdserver: invalid auth token")
            }
            "Authenticate" => {
                refused += 1;
                Fate::Refused(tonic::Code::ResourceExhausted, "etcdserver: too many requests")
            }
            _ => Fate::Served,
        });
        let held = acquire(&session, &fresh_name()).await;
        assert_eq!(script.count("Authenticate"), LOGINS, "{form:?}");
        release(&session, &held).await;
    }
}

/// An operator has deleted the key of its client's claim, which does not know that yet.
#[tokio::test(start_paused = true)]
async fn waiter_watches_the_key_in_front_of_it_if_that_is_not_of_its_client() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let _held = acquire(&session, &name).await;
    let own = script.keys("lockkit/test")[0].clone();
    script.put(&foreign(&name), "");
    let waiting = enqueued(&session, &name).await;
    script.delete(&own);
    // The re-check has found that by then.
    sleep(latest_recheck(TTL) + Duration::from_secs(1)).await;
    let since = Instant::now();
    script.delete(&foreign(&name));
    release(&session, &waiting.granted().await).await;
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}
