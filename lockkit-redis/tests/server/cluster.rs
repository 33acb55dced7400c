//! Clusters: masters that die or hang, and replicas.

use lockkit_core::{
    ErrorKind, LockName,
    backend::{Acquired, Renewal},
};
use lockkit_testbed::{Redis, RedisCluster};

use crate::{
    common::{
        LONG, acquire, bounded, enqueued, fresh_name, is_gave_up, quick_session, release, session_at,
        start_claim, try_acquire, until,
    },
    replicas::until_replicas_count,
    topologies::{QUICK, is_renewed},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_serves_locks_in_all_its_slots() {
    let cluster = RedisCluster::start().unwrap();
    let (one, other) = (session_at(&cluster.url(), LONG).await, session_at(&cluster.url(), LONG).await);
    let mut held = Vec::new();
    for _ in 0..30 {
        let name = fresh_name();
        held.push(acquire(&one, &name).await);
        assert!(is_gave_up(&try_acquire(&other, &name).await));
    }
    let heartbeat = bounded(one.renew(&held)).await;
    assert_eq!(heartbeat.holds.len(), held.len());
    assert!(
        heartbeat.holds.iter().all(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. })),
        "{heartbeat:?}"
    );
    for grant in &held {
        let waiter = enqueued(&other, grant.name()).await;
        release(&one, grant).await;
        assert!(waiter.granted().await.token() > grant.token());
    }
    bounded(other.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_survives_the_death_of_a_master() {
    let mut cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{QUICK}", cluster.url());
    let (one, other) = (quick_session(&url, LONG).await, quick_session(&url, LONG).await);
    let name = fresh_name();
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
    let replica = replica_of(&cluster, owner);
    cluster.wait_until_in_sync(owner, replica).unwrap();
    cluster.node_mut(owner).kill().unwrap();
    cluster.wait_until_master(replica).unwrap();
    until("the hold is renewed at the new master", async || is_renewed(&one, &held).await).await;
    release(&one, &held).await;
    match waiter.ends().await {
        Ok(Acquired::Granted(next)) => assert!(next.token() > held.token()),
        // The other nodes may have promoted one more replica meanwhile, one without the entry.
        end => assert!(matches!(end, Ok(Acquired::EntryGone)), "{end:?}"),
    }
}

/// Its kernel still acknowledges, so silence is the only sign.
#[tokio::test(flavor = "multi_thread")]
async fn new_master_is_found_when_the_old_one_hangs() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{QUICK}", cluster.url());
    let (session, name) = (quick_session(&url, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
    let replica = replica_of(&cluster, owner);
    let elsewhere = acquire(&session, &name_of_another(&cluster, owner)).await;
    cluster.wait_until_in_sync(owner, replica).unwrap();
    cluster.node(owner).pause().unwrap();
    assert!(!is_renewed(&session, &held).await);
    until("the lock at another node is served", async || is_renewed(&session, &elsewhere).await).await;
    // The other nodes need some seconds to agree on the failure.
    cluster.wait_until_master(replica).unwrap();
    until("the hold is renewed at the new master", async || is_renewed(&session, &held).await).await;
    release(&session, &held).await;
    let next = acquire(&session, &name).await;
    assert!(next.token() > held.token());
    until("the lock at another node is served", async || is_renewed(&session, &elsewhere).await).await;
}

/// The nodes name the same masters as when the client connected, but not as it was redirected since.
#[tokio::test(flavor = "multi_thread")]
async fn new_master_is_found_even_if_it_was_master_before() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{QUICK}", cluster.url());
    let (session, name) = (quick_session(&url, LONG).await, fresh_name());
    let first = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
    let second = replica_of(&cluster, first);
    cluster.wait_until_in_sync(first, second).unwrap();
    cluster.failover(second).unwrap();
    let held = acquire(&session, &name).await;
    cluster.wait_until_in_sync(second, first).unwrap();
    cluster.node(second).pause().unwrap();
    cluster.wait_until_master(first).unwrap();
    until("the hold is renewed at the new master", async || is_renewed(&session, &held).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_subscribed_at_a_hanging_master_resubscribes() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{QUICK}", cluster.url());
    let has_subscriber = |number: usize| {
        let channels = cluster.node(number).cli(&["PUBSUB", "CHANNELS", "lockkit:client:*"]).unwrap();
        !channels.list().is_empty()
    };
    let waiting = quick_session(&url, LONG).await;
    let hanging = (0..cluster.len()).find(|&number| has_subscriber(number)).unwrap();
    let (name, replica) = (name_of_another(&cluster, hanging), replica_of(&cluster, hanging));
    // The test finds the client by its subscription, so there must be no other one.
    let held = acquire(&waiting, &name).await;
    let waiter = enqueued(&waiting, &name).await;
    cluster.node(hanging).pause().unwrap();
    cluster.wait_until_master(replica).unwrap();
    until("the client has subscribed at another node", async || {
        // Sends heartbeats; the hold and the waiter are at another node.
        is_renewed(&waiting, &held).await;
        (0..cluster.len()).any(|number| number != hanging && has_subscriber(number))
    })
    .await;
    release(&waiting, &held).await;
    waiter.granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_opens_while_a_master_hangs() {
    let cluster = RedisCluster::start().unwrap();
    cluster.node(0).pause().unwrap();
    let session = session_at(&cluster.url(), LONG).await;
    acquire(&session, &name_of_another(&cluster, 0)).await;
}

/// Returns a name in a slot of another node.
fn name_of_another(cluster: &RedisCluster, node: usize) -> LockName {
    let mut names = std::iter::repeat_with(fresh_name);
    let is_elsewhere = |name: &LockName| cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap() != node;
    names.find(is_elsewhere).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_grant_waits_for_the_replicas_of_its_master() {
    let cluster = RedisCluster::start().unwrap();
    let session = quick_session(&format!("{}/{QUICK}&min_replicas=1", cluster.url()), LONG).await;
    let name = fresh_name();
    let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
    let elsewhere = name_of_another(&cluster, owner);
    until_replicas_count(&session, &name).await;
    cluster.node(replica_of(&cluster, owner)).stop_replicating().unwrap();
    let error = try_acquire(&session, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    until_replicas_count(&session, &elsewhere).await;
}

/// WAIT on a connection without writes returns at once, so it would prove nothing.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_asked_over_the_connection_of_the_grant() {
    let cluster = RedisCluster::start().unwrap();
    // Half of it is for the replica, which is frozen and acknowledges nothing. The claim ends after two halves, or after
    // three if the frozen node is asked for the masters.
    let session = session_at(&format!("{}/?request_timeout=10s&min_replicas=1", cluster.url()), LONG).await;
    let name = fresh_name();
    until_replicas_count(&session, &name).await;
    let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
    let replica = replica_of(&cluster, owner);
    cluster.node(replica).pause().unwrap();
    let claim = start_claim(&session, &name, false);
    until("the connection of WAIT is killed", async || {
        let clients = cluster.node(owner).cli(&["CLIENT", "LIST"]).unwrap();
        // A connection whose last request was WAIT is no longer blocked.
        let waits = |client: &&str| client.contains(" flags=b ") && client.contains(" cmd=wait ");
        let waits = clients.text().lines().find(waits);
        let id = waits.and_then(|client| client.strip_prefix("id=")?.split(' ').next());
        id.is_some_and(|id| {
            cluster.node(owner).cli(&["CLIENT", "KILL", "ID", id]).unwrap().number() == Some(1)
        })
    })
    .await;
    let end = claim.ends().await;
    cluster.node(replica).resume().unwrap();
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Returns the only replica of this node.
fn replica_of(cluster: &RedisCluster, master: usize) -> usize {
    let endpoint = cluster.node(master).endpoint();
    let (host, port) = endpoint.split_once(':').unwrap();
    let address = format!("master_host:{host}\r\nmaster_port:{port}\r\n");
    let follows = |node: &Redis| node.cli(&["INFO", "replication"]).unwrap().text().contains(&address);
    (0..cluster.len()).find(|&number| follows(cluster.node(number))).unwrap()
}
