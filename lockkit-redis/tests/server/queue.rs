//! Long queues: the cost of waiting, and how dead waiters affect live ones.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockkit_core::{LockName, backend::Session};
use lockkit_testbed::{Redis, ServerClock};

use crate::{
    common::{
        LONG, PendingClaim, acquire, bounded, enqueued, fresh_name, granted, release, scripts, session,
        shared, side, try_acquire, until,
    },
    raw::{Claimant, add_lapsed_waiters, heartbeat, remaining_keys},
};

/// As many waiters as one client that died may leave.
const LAPSED: usize = 65_536;

/// The most lapsed waiters that one script drops.
const DROPPED_MAX: usize = 500;

/// The same, plus the waiter that it grants the lock to.
const DROPPED_PER_SCRIPT_MAX: u64 = DROPPED_MAX as u64 + 1;

/// The number of scripts that were run, and of the waiters that they removed.
struct Work {
    scripts: u64,
    dropped: u64,
}

async fn work_of<T>(redis: &Redis, doing: impl Future<Output = T>) -> (T, Work) {
    let count = || Work { scripts: scripts(redis), dropped: redis.calls("zrem").unwrap() };
    let before = count();
    redis.cli(&["SLOWLOG", "RESET"]).unwrap();
    let done = bounded(doing).await;
    let after = count();
    let work = Work { scripts: after.scripts - before.scripts, dropped: after.dropped - before.dropped };
    // For the log of this test: the third value of each entry is the time in microseconds.
    let slow = redis.cli(&["SLOWLOG", "GET", "1000"]).unwrap();
    let longest = slow.list().iter().filter_map(|entry| entry.list().get(2)?.number()).max();
    println!("{} scripts dropped {}; the longest took {longest:?} us", work.scripts, work.dropped);
    (done, work)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_behind_65536_dead_ones_is_served_while_the_server_serves_others() {
    let redis = Redis::start().unwrap();
    redis.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"]).unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    add_lapsed_waiters(&redis, &name, LAPSED);
    let handoff = async {
        release(&one, &held).await;
        // The release has granted it: the waiter re-checks seconds later.
        let value = redis.cli(&["GET", name.as_str()]).unwrap();
        assert!(value.text().starts_with(&waiter.claim.id().to_string()), "{value:?}");
        waiter.granted().await
    };
    let (next, work) = work_of(&redis, handoff).await;
    assert!(next.token() > held.token());
    assert!(work.dropped >= LAPSED as u64, "{}", work.dropped);
    let most = work.scripts * DROPPED_PER_SCRIPT_MAX;
    assert!(work.dropped <= most, "{} scripts dropped {}", work.scripts, work.dropped);
}

#[tokio::test(flavor = "multi_thread")]
async fn newcomer_behind_65536_dead_waiters_is_granted() {
    let redis = Redis::start().unwrap();
    let session = session(&redis, LONG).await;
    for wait in [false, true] {
        let name = fresh_name();
        add_lapsed_waiters(&redis, &name, LAPSED);
        let taken = async {
            match wait {
                true => acquire(&session, &name).await,
                false => granted(try_acquire(&session, &name).await),
            }
        };
        let (_, work) = work_of(&redis, taken).await;
        let most = work.scripts * DROPPED_PER_SCRIPT_MAX;
        assert!(work.dropped <= most, "{} scripts dropped {}", work.scripts, work.dropped);
    }
}

/// The releasing client has died before it found the next waiter.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_finishes_the_handoff_of_a_client_that_died() {
    let redis = Redis::start().unwrap();
    let (other, name) = (session(&redis, LONG).await, fresh_name());
    redis.cli(&["SET", name.as_str(), "another program's"]).unwrap();
    let waiters = [enqueued(&other, &name).await, enqueued(&other, &name).await];
    add_lapsed_waiters(&redis, &name, LAPSED);
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert!(waiters.iter().all(|waiter| waiter.is_waiting()));
    let [first, second] = waiters;
    let (next, work) = work_of(&redis, async {
        other.renew(&[]).await;
        first.granted().await
    })
    .await;
    let most = work.scripts * DROPPED_PER_SCRIPT_MAX;
    assert!(work.dropped <= most, "{} scripts dropped {}", work.scripts, work.dropped);
    release(&other, &next).await;
    second.granted().await;
}

const WAITERS: usize = 20;

/// Long enough that a busy machine sends every heartbeat in time.
const TTL: Duration = Duration::from_secs(20);

/// For more than a ttl. The waiters would re-check before the third one.
const HEARTBEATS: u32 = 5;

/// Starts [`WAITERS`] claims.
async fn waiters(session: &Arc<dyn Session>, name: &LockName) -> Vec<PendingClaim> {
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        waiting.push(enqueued(session, name).await);
    }
    waiting
}

/// Sends heartbeats as a keeper does. Returns the number of scripts that were run.
async fn scripts_of_heartbeats(redis: &Redis, session: &Arc<dyn Session>) -> u64 {
    let before = scripts(redis);
    let mut heartbeats = tokio::time::interval(TTL / 3);
    for _ in 0..HEARTBEATS {
        heartbeats.tick().await;
        bounded(session.renew(&[])).await;
    }
    scripts(redis) - before
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_with_heartbeats_send_no_requests() {
    let redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, TTL).await, fresh_name());
    let held = acquire(&one, &name).await;
    let mut waiting = waiters(&other, &name).await;
    let run = scripts_of_heartbeats(&redis, &other).await;
    println!("{run} scripts for {WAITERS} waiters and {HEARTBEATS} heartbeats at a third of a ttl each");
    // One for each heartbeat, and none for the waiters.
    assert!(run < u64::from(HEARTBEATS) + WAITERS as u64, "{run}");
    release(&one, &held).await;
    waiting.remove(0).granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_without_heartbeats_extend_their_waits() {
    let redis = Redis::start().unwrap();
    let ttl = Duration::from_secs(8);
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, ttl).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    let before = scripts(&redis);
    until("it has re-checked for more than a ttl", async || scripts(&redis) - before >= 3).await;
    release(&one, &held).await;
    waiter.granted().await;
}

/// How often a measurement is repeated, because a busy machine may disturb it.
const ROUNDS_MAX: usize = 5;

/// The same heartbeat has extended their waits.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_without_heartbeats_do_not_recheck_together() {
    let redis = Redis::start().unwrap();
    // Its lock outlives all rounds: the end of a lock is a re-check of one waiter.
    let (one, other, name) = (session(&redis, 10 * LONG).await, session(&redis, TTL).await, fresh_name());
    let held = acquire(&one, &name).await;
    let mut waiting = waiters(&other, &name).await;
    let mut spreads = Vec::new();
    // Re-checks are due within a tenth of a ttl: after half a ttl, plus or minus a tenth. A busy machine may stall.
    while spreads.last().is_none_or(|spread| *spread <= TTL / 40) {
        assert!(spreads.len() < ROUNDS_MAX, "all re-checks within {spreads:?} in each round");
        other.renew(&[]).await;
        let before = scripts(&redis);
        until("the first one re-checks", async || scripts(&redis) > before).await;
        let first = Instant::now();
        until("the last one re-checks", async || scripts(&redis) >= before + WAITERS as u64).await;
        spreads.push(first.elapsed());
    }
    release(&one, &held).await;
    waiting.remove(0).granted().await;
}

/// When a heartbeat finds the lock free, all waiters of the client could re-check, but one is enough.
#[tokio::test(flavor = "multi_thread")]
async fn one_waiter_rechecks_when_the_lock_is_free() {
    let redis = Redis::start().unwrap();
    let (other, name) = (session(&redis, LONG).await, fresh_name());
    redis.cli(&["SET", name.as_str(), "another program's"]).unwrap();
    let mut waiting = waiters(&other, &name).await;
    other.renew(&[]).await;
    redis.cli(&["DEL", name.as_str()]).unwrap();
    let before = scripts(&redis);
    other.renew(&[]).await;
    waiting.remove(0).granted().await;
    // The heartbeat, the re-check, and the confirmation by the waiter that was granted the lock.
    let run = scripts(&redis) - before;
    assert!(run <= 4, "{run}");
}

/// A place is not that of a waiter who has left.
#[test]
fn newcomers_are_behind_all_waiters_after_others_have_left() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, first, second, third, late] = [(); 5].map(|()| Claimant::new(redis, &name));
    holder.acquire();
    for waiter in [&first, &second, &third] {
        waiter.acquire();
    }
    for waiter in [&first, &second] {
        assert_eq!(waiter.release(), 0);
    }
    late.acquire();
    assert_eq!(queued(redis, &name), [&*third.claim, &*late.claim]);
}

/// Returns the claims in the queue, the first one first.
fn queued(redis: &Redis, name: &LockName) -> Vec<String> {
    let queue = redis.cli(&["ZRANGE", &side(name, "queue"), "0", "-1"]).unwrap();
    queue.list().iter().map(|claim| claim.text().to_owned()).collect()
}

/// Also behind those that wait since before a failover to a server whose clock is slow.
#[test]
fn newcomer_is_behind_all_waiters_after_the_clock_was_put_back() {
    let clock = ServerClock::new().unwrap();
    let (redis, name) = (Redis::start_on(&clock).unwrap(), fresh_name());
    let [holder, first, newcomer] = [(); 3].map(|()| Claimant::new(&redis, &name));
    holder.acquire();
    first.acquire();
    clock.step_back(LONG).unwrap();
    newcomer.acquire();
    assert_eq!(queued(&redis, &name), [&*first.claim, &*newcomer.claim]);
}

/// Nothing has granted the lock yet: its holder has just expired.
#[test]
fn withdrawal_of_the_first_waiter_grants_a_free_lock_to_the_next() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, first, second] = [(); 3].map(|()| Claimant::new(redis, &name));
    holder.acquire();
    first.acquire();
    second.acquire();
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert_eq!(first.release_once(), (0, 0));
    let value = redis.cli(&["GET", name.as_str()]).unwrap();
    assert!(value.text().starts_with(&second.claim), "{value:?}");
}

#[test]
fn no_script_drops_more_than_500_lapsed_waiters() {
    let redis = Redis::start().unwrap();
    for is_released in [true, false] {
        let name = fresh_name();
        let [holder, waiter, late] = [(); 3].map(|()| Claimant::new(&redis, &name));
        holder.acquire();
        assert_eq!(waiter.acquire().0, "queued");
        add_lapsed_waiters(&redis, &name, 5 * DROPPED_MAX + 1);
        let queue = side(&name, "queue");
        let waiting = || usize::try_from(redis.cli(&["ZCARD", &queue]).unwrap().number().unwrap()).unwrap();
        if is_released {
            assert_eq!(holder.release_once(), (1, 1));
        } else {
            redis.cli(&["DEL", name.as_str()]).unwrap();
            assert_eq!(Claimant::new(&redis, &name).release_once(), (0, 1), "a withdrawal");
        }
        assert_eq!(waiting(), 4 * DROPPED_MAX + 2);
        assert_eq!(late.try_once().0, "unserved");
        assert_eq!(waiting(), 3 * DROPPED_MAX + 2, "a try does not join the queue");
        assert_eq!(late.acquire().0, "unserved");
        assert_eq!(waiting(), 2 * DROPPED_MAX + 3, "a newcomer joins the queue");
        assert_eq!(late.acquire().0, "unserved");
        assert_eq!(late.confirm().0, "unserved");
        assert_eq!(waiting(), 3, "one lapsed waiter and two live ones");
        assert_eq!(
            heartbeat(&redis, &[(&name, &waiter.claim)]),
            [-2],
            "the heartbeat reports the lock as free"
        );
        // First come, first served, also after the lapsed waiters were dropped.
        assert_eq!(late.confirm().0, "queued");
        assert_eq!(waiter.confirm().0, "granted");
        assert_eq!(waiter.release_once(), (1, 0));
        assert_eq!(late.confirm().0, "granted");
        late.release();
        assert_eq!(remaining_keys(&redis, &name), [side(&name, "fence")]);
    }
}

#[test]
fn free_lock_behind_lapsed_waiters_is_granted_to_a_try_in_a_few_calls() {
    let (redis, name) = (shared(), fresh_name());
    add_lapsed_waiters(redis, &name, 2 * DROPPED_MAX);
    let one = Claimant::new(redis, &name);
    assert_eq!(one.try_once().0, "unserved");
    assert_eq!(one.try_once().0, "unserved");
    assert_eq!(one.try_once().0, "granted");
}
