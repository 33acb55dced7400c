//! Clusters: slots that move, masters that die or hang.

use lockkit_core::{
    ErrorKind, LockName,
    backend::{Acquired, Renewal},
};
use lockkit_testbed::{Redis, RedisCluster};

use crate::{
    common::{
        LONG, acquire, bounded, enqueued, fresh_name, is_gave_up, release, session_at, start_claim,
        try_acquire, until,
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
    let beat = bounded(one.renew(&held)).await;
    assert_eq!(beat.holds.len(), held.len());
    assert!(beat.holds.iter().all(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. })), "{beat:?}");
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
    let (one, other) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
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
        // The others have promoted once more meanwhile, one that had not heard of it yet.
        end => assert!(matches!(end, Ok(Acquired::EntryGone)), "{end:?}"),
    }
}

/// Its kernel goes on acknowledging, so nothing but silence tells of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_successor_of_a_master_that_hangs_is_found() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{QUICK}", cluster.url());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
    let replica = replica_of(&cluster, owner);
    let elsewhere = acquire(&session, &name_of_another(&cluster, owner)).await;
    cluster.wait_until_in_sync(owner, replica).unwrap();
    cluster.node(owner).pause().unwrap();
    assert!(!is_renewed(&session, &held).await);
    until("the others are served", async || is_renewed(&session, &elsewhere).await).await;
    // By themselves the others need some seconds to agree that it is gone.
    cluster.wait_until_master(replica).unwrap();
    until("the hold is renewed at the new master", async || is_renewed(&session, &held).await).await;
    release(&session, &held).await;
    let next = acquire(&session, &name).await;
    assert!(next.token() > held.token());
    until("the others are served", async || is_renewed(&session, &elsewhere).await).await;
}

/// The masters are those that there were when the client connected, and not those that it has been sent to since.
#[tokio::test(flavor = "multi_thread")]
async fn the_successor_of_a_master_that_hangs_is_found_though_it_has_been_master_before() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{QUICK}", cluster.url());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
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
async fn a_waiter_that_listens_at_a_master_that_hangs_listens_elsewhere() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{QUICK}", cluster.url());
    let listens = |number: usize| {
        let channels = cluster.node(number).cli(&["PUBSUB", "CHANNELS", "lockkit:client:*"]).unwrap();
        !channels.list().is_empty()
    };
    let waiting = session_at(&url, LONG).await;
    let deaf = (0..cluster.len()).find(|&number| listens(number)).unwrap();
    let (name, replica) = (name_of_another(&cluster, deaf), replica_of(&cluster, deaf));
    // Another one that listens would be taken for it.
    let held = acquire(&waiting, &name).await;
    let waiter = enqueued(&waiting, &name).await;
    cluster.node(deaf).pause().unwrap();
    cluster.wait_until_master(replica).unwrap();
    until("the client listens elsewhere", async || {
        // Its beats; what it holds and waits for is at another one.
        is_renewed(&waiting, &held).await;
        (0..cluster.len()).any(|number| number != deaf && listens(number))
    })
    .await;
    release(&waiting, &held).await;
    waiter.granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_joined_while_one_of_its_masters_hangs() {
    let cluster = RedisCluster::start().unwrap();
    cluster.node(0).pause().unwrap();
    let session = session_at(&cluster.url(), LONG).await;
    acquire(&session, &name_of_another(&cluster, 0)).await;
}

/// A name in a slot of another node.
fn name_of_another(cluster: &RedisCluster, node: usize) -> LockName {
    let mut names = std::iter::repeat_with(fresh_name);
    let is_elsewhere = |name: &LockName| cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap() != node;
    names.find(is_elsewhere).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_a_cluster_are_waited_for_where_the_lock_is() {
    let cluster = RedisCluster::start().unwrap();
    let session = session_at(&format!("{}/{QUICK}&min_replicas=1", cluster.url()), LONG).await;
    let name = fresh_name();
    let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
    let elsewhere = name_of_another(&cluster, owner);
    until_replicas_count(&session, &name).await;
    cluster.node(replica_of(&cluster, owner)).stop_replicating().unwrap();
    let error = try_acquire(&session, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    until_replicas_count(&session, &elsewhere).await;
}

/// A connection has nothing to wait for that has written nothing: what is asked over it is answered at once.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_not_asked_over_another_connection_than_the_grant_was_written_over() {
    let cluster = RedisCluster::start().unwrap();
    // Half of it is for the replica, which is cut off from nothing, and writes nothing.
    let session = session_at(&format!("{}/?request_timeout=10s&min_replicas=1", cluster.url()), LONG).await;
    let name = fresh_name();
    until_replicas_count(&session, &name).await;
    let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
    let replica = replica_of(&cluster, owner);
    cluster.node(replica).pause().unwrap();
    let claim = start_claim(&session, &name, false);
    until("the connection that waits is killed", async || {
        let clients = cluster.node(owner).cli(&["CLIENT", "LIST"]).unwrap();
        let waits = clients.text().lines().find(|client| client.contains(" cmd=wait "));
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

/// The only replica of this node.
fn replica_of(cluster: &RedisCluster, master: usize) -> usize {
    let endpoint = cluster.node(master).endpoint();
    let (host, port) = endpoint.split_once(':').unwrap();
    let place = format!("master_host:{host}\r\nmaster_port:{port}\r\n");
    let follows = |node: &Redis| node.cli(&["INFO", "replication"]).unwrap().text().contains(&place);
    (0..cluster.len()).find(|&number| follows(cluster.node(number))).unwrap()
}
