//! Slots that move to another node of a cluster while their locks have holders and waiters.

use std::sync::Arc;

use lockkit_core::backend::{Grant, Renewal, Session};
use lockkit_testbed::RedisCluster;

use crate::{
    common::{LONG, acquire, bounded, fresh_name, name, release, session_at, until},
    topologies::{PATIENT, is_renewed},
};

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_held_and_waited_for_while_their_slot_moves() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/?names=raw", cluster.url());
    let (one, other) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
    // A second lock in the same slot makes a batch of two.
    let [name, neighbour] = ["{tenant}:1", "{tenant}:2"].map(name);
    let mut holder = (one.clone(), acquire(&one, &name).await);
    let kept = acquire(&one, &neighbour).await;
    let slot = cluster.slot(name.as_str()).unwrap();
    for _ in 0..2 {
        let from = cluster.owner(slot).unwrap();
        let to = (0..cluster.len())
            .find(|&number| number != from && cluster.node(number).is_master().unwrap())
            .unwrap();
        let migration = cluster.migrate(slot, to).unwrap();
        assert!(is_renewed(&one, &kept).await);
        migration.move_key(neighbour.as_str()).unwrap();
        let held: Vec<_> = [Some(kept.clone()), (Arc::ptr_eq(&holder.0, &one)).then(|| holder.1.clone())]
            .into_iter()
            .flatten()
            .collect();
        let heartbeat = bounded(one.renew(&held)).await;
        assert!(
            heartbeat.holds.iter().all(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. })),
            "{heartbeat:?}"
        );
        let session = if Arc::ptr_eq(&holder.0, &one) { &other } else { &one };
        let waiter = crate::common::start(session, &name);
        // While the slot moves, the cluster refuses scripts that name missing keys.
        assert!(is_renewed(&holder.0, &holder.1).await);
        migration.move_keys().unwrap();
        assert!(is_renewed(&holder.0, &holder.1).await);
        migration.finish().unwrap();
        until("the claim is queued", async || waiter.control.was_contended()).await;
        release(&holder.0, &holder.1).await;
        let next = waiter.granted().await;
        assert!(next.token() > holder.1.token());
        holder = (session.clone(), next);
    }
    assert!(is_renewed(&one, &kept).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_in_a_moving_slot_is_renewed_although_its_neighbour_cannot_be() {
    let cluster = RedisCluster::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}&names=raw", cluster.url()), LONG).await;
    let [name, neighbour] = ["{tenant}:1", "{tenant}:2"].map(name);
    let held = [acquire(&session, &name).await, acquire(&session, &neighbour).await];
    let slot = cluster.slot(name.as_str()).unwrap();
    let from = cluster.owner(slot).unwrap();
    let to = (0..cluster.len())
        .find(|&number| number != from && cluster.node(number).is_master().unwrap())
        .unwrap();
    let migration = cluster.migrate(slot, to).unwrap();
    migration.move_key(neighbour.as_str()).unwrap();
    cluster.node(to).pause().unwrap();
    let heartbeat = bounded(session.renew(&held)).await;
    cluster.node(to).resume().unwrap();
    for (claim, renewal) in heartbeat.holds {
        let is_as_expected = match &renewal {
            Renewal::Renewed { .. } => claim == held[0].claim(),
            Renewal::Unknown(_) => claim == held[1].claim(),
            _ => false,
        };
        assert!(is_as_expected, "{renewal:?}");
    }
}

/// Requests that a node redirects with ASK share one connection, where each must directly follow its own ASKING.
#[tokio::test(flavor = "multi_thread")]
async fn every_hold_of_a_slot_is_renewed_while_the_slot_moves() {
    const HOLDS: usize = 50;
    let cluster = RedisCluster::start().unwrap();
    let session = session_at(&format!("{}/?names=raw", cluster.url()), LONG).await;
    let mut held = Vec::new();
    for number in 0..HOLDS {
        held.push(acquire(&session, &name(&format!("{{tenant}}:{number}"))).await);
    }
    let slot = cluster.slot("{tenant}").unwrap();
    let migration = cluster.migrate(slot, another_master(&cluster, slot)).unwrap();
    for grant in held.iter().step_by(2) {
        assert!(migration.move_key(grant.name().as_str()).unwrap());
    }
    assert_all_renewed(&session, &held).await;
    migration.move_keys().unwrap();
    assert_all_renewed(&session, &held).await;
    migration.finish().unwrap();
    assert_all_renewed(&session, &held).await;
}

/// As above; the other requests of the connection are for other slots.
#[tokio::test(flavor = "multi_thread")]
async fn hold_in_a_moving_slot_is_renewed_by_a_busy_client() {
    const TASKS: usize = 20;
    let cluster = RedisCluster::start().unwrap();
    let session = session_at(&cluster.url(), LONG).await;
    let name = fresh_name();
    let held = [acquire(&session, &name).await];
    let slot = cluster.slot(name.as_str()).unwrap();
    let to = another_master(&cluster, slot);
    let busy: Vec<_> = std::iter::repeat_with(fresh_name)
        .filter(|name| cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap() == to)
        .take(TASKS)
        .map(|name| {
            let session = session.clone();
            tokio::spawn(async move {
                loop {
                    let grant = acquire(&session, &name).await;
                    release(&session, &grant).await;
                }
            })
        })
        .collect();
    let migration = cluster.migrate(slot, to).unwrap();
    assert!(migration.move_key(name.as_str()).unwrap());
    for _ in 0..20 {
        assert_all_renewed(&session, &held).await;
    }
    assert!(busy.iter().all(|task| !task.is_finished()));
    for task in busy {
        task.abort();
    }
}

/// While the client has no connection to the slot's owner, its requests go to any node. The importing node answers for
/// keys that the owner still has.
#[tokio::test(flavor = "multi_thread")]
async fn hold_in_a_moving_slot_is_not_gone_while_its_owner_is_away() {
    // Enough that most are requested from the wrong node at least once.
    const HOLDS: usize = 16;
    let mut cluster = RedisCluster::start().unwrap();
    // So that an unreachable owner stays the owner.
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-node-timeout", "3600000"]).unwrap();
    }
    let session = session_at(&format!("{}/{PATIENT}&names=raw", cluster.url()), 10 * LONG).await;
    let mut held = Vec::new();
    for number in 0..HOLDS {
        held.push(acquire(&session, &name(&format!("{{tenant}}:{number}"))).await);
    }
    let slot = cluster.slot("{tenant}").unwrap();
    let (from, to) = (cluster.owner(slot).unwrap(), another_master(&cluster, slot));
    cluster.migrate(slot, to).unwrap();
    cluster.node_mut(from).kill().unwrap();
    let answers = || cluster.node(to).calls("eval").unwrap();
    let before = answers();
    until("the node that the slot moves to has answered", async || {
        let heartbeat = bounded(session.renew(&held)).await;
        let all_unknown = heartbeat.holds.iter().all(|(_, renewal)| matches!(renewal, Renewal::Unknown(_)));
        assert!(all_unknown, "{heartbeat:?}");
        answers() > before
    })
    .await;
    cluster.node_mut(from).restart().unwrap();
    until("every hold is renewed", async || {
        let heartbeat = bounded(session.renew(&held)).await;
        heartbeat.holds.iter().all(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. }))
    })
    .await;
}

async fn assert_all_renewed(session: &Arc<dyn Session>, held: &[Grant]) {
    let heartbeat = bounded(session.renew(held)).await;
    assert_eq!(heartbeat.holds.len(), held.len());
    let failed = heartbeat.holds.iter().filter(|(_, renewal)| !matches!(renewal, Renewal::Renewed { .. }));
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{} of {}, such as {:?}", failed.len(), held.len(), failed[0]);
}

fn another_master(cluster: &RedisCluster, slot: usize) -> usize {
    let owner = cluster.owner(slot).unwrap();
    let mut others = (0..cluster.len()).filter(|&number| number != owner);
    others.find(|&number| cluster.node(number).is_master().unwrap()).unwrap()
}
