//! Packets per operation, from the server's own counters: exact numbers, no times.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use lockkit_core::{
    Clock,
    backend::{Backend, Renewal, Session},
};
use lockkit_testbed::{Proxy, ZooKeeper};
use tokio::time::sleep;

use crate::common::{
    LONG, acquire, backend, bounded, fresh_name, granted, heartbeat, held_create_and_list, inspect,
    is_gave_up, is_renewed, node, own_server, patient_url, queue, quiet_session, quiet_url, release,
    session_at, start, try_acquire, undisturbed, until, watching,
};
use crate::elections::{lead, proclaim};

/// Returns the packets that the server has received and sent so far.
fn packets(server: &ZooKeeper) -> (u64, u64) {
    let metrics = server.metrics().unwrap();
    (metrics.packets_received(), metrics.packets_sent())
}

/// Reads of the counters, at most, until they are stable.
const COUNTER_READS_MAX: u64 = 1000;

/// How late the server counts a packet, on a busy machine: after it was sent, perhaps when its client has gone on
/// already. No event says that it has.
const COUNT_DELAY: Duration = Duration::from_millis(100);

/// Returns the packets so far, the cost of one read of the counters, and the number of reads.
async fn settled(server: &ZooKeeper) -> ((u64, u64), (u64, u64), u64) {
    let (mut seen, mut has_waited) = ([packets(server), packets(server), packets(server)], false);
    for reads in 3..COUNTER_READS_MAX {
        let costs =
            [0, 1].map(|index| (seen[index + 1].0 - seen[index].0, seen[index + 1].1 - seen[index].1));
        let is_stable = costs[0] == costs[1];
        if is_stable && has_waited {
            return (seen[2], costs[0], reads);
        }
        has_waited = is_stable;
        if is_stable {
            sleep(COUNT_DELAY).await;
        }
        seen = [seen[1], seen[2], packets(server)];
    }
    panic!("packets keep coming without work: {seen:?}");
}

/// Returns the packets that the work costs, without those of reading the counters.
pub(crate) async fn spent(server: &ZooKeeper, work: impl AsyncFnOnce()) -> (u64, u64) {
    let (before, read_cost, _) = settled(server).await;
    work().await;
    let (after, _, reads) = settled(server).await;
    (after.0 - before.0 - reads * read_cost.0, after.1 - before.1 - reads * read_cost.1)
}

/// Returns the packets of a read of the watch count.
async fn cost_of_reading_watches(server: &ZooKeeper) -> (u64, u64) {
    spent(server, async || assert!(server.watches().is_ok())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn uncontended_acquire_and_release_are_three_packets() {
    const ROUNDS: u64 = 50;
    let server = own_server();
    let (session, name) = (quiet_session(&server).await, fresh_name());
    // Creates the directory.
    release(&session, &acquire(&session, &name).await).await;
    let spent = spent(&server, async || {
        for _ in 0..ROUNDS {
            release(&session, &acquire(&session, &name).await).await;
        }
    })
    .await;
    assert_eq!(spent, (3 * ROUNDS, 3 * ROUNDS));
}

/// Otherwise its repetition at a server that is behind would delete the next holder's node.
#[tokio::test(flavor = "multi_thread")]
async fn release_of_a_recurring_name_asks_the_leader_and_reads_first() {
    let server = own_server();
    for form in ["bare", "single"] {
        let url = format!("{}&form={form}", quiet_url(&server));
        let (session, name) = (session_at(&url, LONG).await, fresh_name());
        let held = acquire(&session, &name).await;
        let spent = spent(&server, async || release(&session, &held).await).await;
        assert_eq!(spent, (3, 3), "{form}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn release_that_was_confirmed_is_not_sent_again() {
    let server = own_server();
    let (session, name) = (quiet_session(&server).await, fresh_name());
    let held = acquire(&session, &name).await;
    release(&session, &held).await;
    assert_eq!(spent(&server, async || release(&session, &held).await).await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn handoff_is_five_packets_in_and_six_out_however_many_wait() {
    const ROUNDS: usize = 24;
    for contenders in [2, 8] {
        let (received, sent) = undisturbed(async || handoffs(contenders, ROUNDS).await).await;
        assert_eq!(received, [5; ROUNDS], "received for {contenders} contenders");
        // A sent packet is counted a moment after the client has received it: perhaps in the next round.
        let max = 6 * ROUNDS as u64 + 1;
        assert!(sent <= max, "sent for {contenders} contenders: {sent} of {max}");
    }
}

/// Passes the lock round: in each round the last holder queues up again, and the first waiter is granted. Returns the
/// longest wait, the packets received in each round, and the packets sent in all rounds.
async fn handoffs(contenders: usize, rounds: usize) -> (Duration, (Vec<u64>, u64)) {
    let (server, name) = (own_server(), fresh_name());
    let mut sessions = Vec::new();
    for _ in 0..contenders {
        sessions.push(quiet_session(&server).await);
    }
    let mut held = acquire(&sessions[0], &name).await;
    let mut queue = VecDeque::new();
    for session in &sessions[1..contenders - 1] {
        queue.push_back((Instant::now(), watching(&server, session, &name).await));
    }
    let cost_of_a_look = cost_of_reading_watches(&server).await;
    let (mut waited, mut received, mut sent) = (Duration::ZERO, Vec::new(), 0);
    // The counters are settled once per round, as the waits must not take long.
    let (mut before, read_cost, _) = settled(&server).await;
    for round in 0..rounds {
        let [holder, last] = [round, round + contenders - 1].map(|number| &sessions[number % contenders]);
        queue.push_back((Instant::now(), start(last, &name)));
        let mut looks = 1;
        while server.watches().unwrap() < contenders as u64 - 1 {
            looks += 1;
        }
        release(holder, &held).await;
        let (since, next) = queue.pop_front().unwrap();
        held = next.granted().await;
        waited = waited.max(since.elapsed());
        let (after, _, reads) = settled(&server).await;
        received.push(after.0 - before.0 - reads * read_cost.0 - looks * cost_of_a_look.0);
        sent += after.1 - before.1 - reads * read_cost.1 - looks * cost_of_a_look.1;
        before = after;
    }
    // Some are still waiting.
    let still = queue.iter().map(|(since, _)| since.elapsed());
    let waited = still.fold(waited, Duration::max);
    // The next measurement may take this server: a client whose session ends there would connect once more.
    for session in &sessions {
        bounded(session.close()).await.unwrap();
    }
    (waited, (received, sent))
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_is_two_requests_however_much_is_held() {
    let server = own_server();
    let session = quiet_session(&server).await;
    let mut held = Vec::new();
    for count in [0_u64, 1, 10, 100] {
        while (held.len() as u64) < count {
            held.push(acquire(&session, &fresh_name()).await);
        }
        let held: Vec<_> = held.iter().collect();
        let spent = spent(&server, async || {
            let heartbeat = heartbeat(&session, &held).await;
            assert!(
                is_renewed(&heartbeat.session)
                    && heartbeat.holds.iter().all(|(_, renewal)| is_renewed(renewal))
            );
        })
        .await;
        // Without holds, nothing is read.
        let requests = 1 + count.min(1);
        assert_eq!(spent, (requests, requests), "{count} held");
    }
}

/// The sessions of a backend share a table of holds; the end of a session removes its holds.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_looks_for_no_hold_of_a_session_that_has_ended() {
    let server = own_server();
    let backend = backend(&quiet_url(&server));
    let open = async || backend.open_session(LONG, Clock::boot()).await.unwrap();
    let (session, ended) = (open().await, open().await);
    let held = acquire(&ended, &fresh_name()).await;
    bounded(ended.close()).await.unwrap();
    drop(ended);
    let spent = spent(&server, async || {
        let heartbeat = heartbeat(&session, &[&held]).await;
        assert!(
            is_renewed(&heartbeat.session) && matches!(heartbeat.holds[..], [(_, Renewal::Gone)]),
            "{heartbeat:?}"
        );
    })
    .await;
    assert_eq!(spent, (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn first_list_is_sent_without_waiting_for_the_create() {
    let (server, name) = (own_server(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&patient_url(&proxy), LONG).await;
    let claim = held_create_and_list(&proxy, &session, &name).await;
    let spent = spent(&server, async || {
        proxy.pass();
        release(&session, &claim.granted().await).await;
    })
    .await;
    assert_eq!(spent, (3, 3), "the list that came with the create was not enough");
}

/// A client that polls a held lock adds nothing to the logs of the servers.
#[tokio::test(flavor = "multi_thread")]
async fn busy_try_creates_a_node_once_and_then_only_reads() {
    let server = own_server();
    // Create, list and delete. Where names recur, a check and a read are before the delete, and a read before the grant.
    // Where the lock is one node, nothing is listed: the create is refused, and the holder's node is watched and left.
    for (form, first, pair) in [("curator", 3, 3), ("bare", 5, 6), ("single", 3, 4)] {
        let spent = undisturbed(async || busy_tries(&server, form).await).await;
        // Sync and read. Free again: once more behind a read, then like any other claim.
        let expected = [first, 2 * BUSY_TRIES, 2 + pair, pair].map(|packets| (packets, packets));
        assert_eq!(spent, expected, "{form}");
    }
}

const BUSY_TRIES: u64 = 20;

/// Returns the packets of the first busy try, of more of them, and of two pairs of acquire and release afterwards; and the
/// longest of these four times: a session that sends nothing for nine seconds sends a ping, which counts.
async fn busy_tries(server: &ZooKeeper, form: &str) -> (Duration, [(u64, u64); 4]) {
    let url = format!("{}&form={form}", quiet_url(server));
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let tries = async |count: u64| {
        for _ in 0..count {
            assert!(is_gave_up(&try_acquire(&other, &name).await));
        }
    };
    let pair = async || release(&other, &granted(try_acquire(&other, &name).await)).await;
    let sessions = [&one, &other];
    let logged = async |count: u64| {
        let before = server.log_bytes().unwrap();
        tries(count).await;
        server.log_bytes().unwrap() - before
    };
    let first = spent_awake(server, sessions, async || {
        println!("{form}: {} bytes of log for the first busy try", logged(1).await);
    })
    .await;
    let later = spent_awake(server, sessions, async || {
        assert_eq!(logged(BUSY_TRIES).await, 0, "{form}: a try was logged");
    })
    .await;
    let left = server.ephemerals().unwrap().into_values().flatten();
    assert_eq!(left.filter(|path| path.contains(&node(&name))).count(), 1, "{form}: a try left its node");
    release(&one, &held).await;
    let behind_a_read = spent_awake(server, sessions, async || pair().await).await;
    let measured = [first, later, behind_a_read, spent_awake(server, sessions, async || pair().await).await];
    (measured.map(|(time, _)| time).into_iter().max().unwrap(), measured.map(|(_, packets)| packets))
}

/// Returns the packets of some work of two sessions that have just sent a request, and the time it took.
async fn spent_awake(
    server: &ZooKeeper,
    sessions: [&Arc<dyn Session>; 2],
    work: impl AsyncFnOnce(),
) -> (Duration, (u64, u64)) {
    for session in sessions {
        session.renew(&[]).await;
    }
    let since = Instant::now();
    let spent = spent(server, work).await;
    (since.elapsed(), spent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_one_waiter() {
    const WAITERS: usize = 20;
    let (spent, read_cost) = undisturbed(async || release_to_one_of(WAITERS).await).await;
    // Delete and list, their answers and one event; and the read of the watch count.
    assert_eq!(spent, (2 + read_cost.0, 3 + read_cost.1));
}

/// Releases a lock with this many waiters. Returns the longest wait, the packets including a read of the watch count,
/// and those of that read.
async fn release_to_one_of(waiters: usize) -> (Duration, ((u64, u64), (u64, u64))) {
    let server = own_server();
    let (session, name) = (quiet_session(&server).await, fresh_name());
    let held = acquire(&session, &name).await;
    let (since, mut waiting) = (Instant::now(), Vec::new());
    for _ in 0..waiters {
        waiting.push(watching(&server, &session, &name).await);
    }
    let mut waiting = waiting.into_iter();
    let next = waiting.next().unwrap();
    let spent = spent(&server, async || {
        release(&session, &held).await;
        let grant = next.granted().await;
        assert_eq!(server.watches().unwrap(), waiters as u64 - 1);
        drop(grant);
    })
    .await;
    let read_cost = cost_of_reading_watches(&server).await;
    (since.elapsed(), (spent, read_cost))
}

/// Each node of another program may hold up to a mebibyte.
#[tokio::test(flavor = "multi_thread")]
async fn inspection_reads_twenty_nodes_at_once() {
    let (server, name) = (own_server(), fresh_name());
    for directory in ["/lockkit", &node(&name)] {
        server.create(directory, "").unwrap();
    }
    let (mut costs, mut nodes) = (Vec::new(), 0);
    for contenders in [20, 21, 41] {
        while nodes < contenders {
            server.create(&format!("{}/lock-{nodes:010}", node(&name)), "").unwrap();
            nodes += 1;
        }
        let spent = spent(&server, async || {
            assert_eq!(inspect(&server.url(), &name).await.waiters.len(), contenders - 1);
        });
        costs.push(spent.await.0);
    }
    assert_eq!(costs, [costs[0], costs[0] + 1, costs[0] + 2]);
}

/// Read, write; then behind a request through the leader once more, because a follower may show the old state for long.
#[tokio::test(flavor = "multi_thread")]
async fn overtaken_write_is_repeated_behind_one_request_through_the_leader() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, name) = (session_at(&patient_url(&proxy), LONG).await, fresh_name());
    let grant = lead(&session, &name, "first").await;
    let node = format!("{}/{}", node(&name), queue(&server, &name)[0]);
    let record = format!("/lockkit/:records/{name}");
    assert!(bounded(session.records().unwrap().write(&grant, "first", LONG)).await.unwrap());
    for (path, is_record) in [(node, false), (record, true)] {
        // Only the write contains it.
        proxy.hold_requests_from("overtaken");
        let spent = spent(&server, async || {
            let write = async {
                match is_record {
                    true => session.records().unwrap().write(&grant, "overtaken", LONG).await.unwrap(),
                    false => proclaim(&session, &grant, "overtaken", 2).await,
                }
            };
            let overtake = async {
                until("the write is under way", async || proxy.holds("overtaken")).await;
                server.write(&path, b"other").unwrap();
                proxy.pass();
            };
            assert!(bounded(async { tokio::join!(write, overtake).0 }).await);
        })
        .await;
        // The other write is three: a greeting, the write, and a farewell.
        assert_eq!(spent, (5 + 3, 5 + 3), "{path}");
    }
    release(&session, &grant).await;
}
