//! A cluster that loses members.

use std::time::Duration;

use lockkit_core::{ErrorKind, LockClient};
use lockkit_testbed::EtcdCluster;

use crate::common::{backend, bounded};

/// Longer than an election and the time that the servers add to every lease after it.
const TTL: Duration = Duration::from_secs(10);

async fn client(url: &str) -> LockClient {
    LockClient::builder(backend(url)).ttl(TTL).build().await.unwrap()
}

/// One cluster for all of it: a start takes longer than the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_survives_its_leader_and_does_not_outlive_the_majority() {
    let mut cluster = EtcdCluster::start().unwrap();
    let one = client(&format!("{}/?request_timeout=1s", cluster.url())).await;
    let held = one.lock("x").unwrap().acquire().await.unwrap();

    let leader = cluster.leader().unwrap();
    cluster.member_mut(leader).kill().unwrap();
    cluster.leader().unwrap();
    let other = bounded(one.lock("y").unwrap().acquire()).await.unwrap();
    held.check().unwrap();
    cluster.member_mut(leader).restart().unwrap();

    // A client that knows only the member that is cut from the others.
    let alone = cluster.leader().unwrap();
    let stuck = client(&cluster.member(alone).url()).await;
    let z = stuck.lock("z").unwrap();
    let believed = z.acquire().await.unwrap();
    cluster.cut(alone).unwrap();
    assert_eq!(bounded(believed.lost()).await.kind(), ErrorKind::Lost);
    assert_eq!(bounded(z.try_acquire()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let next = bounded(one.lock("z").unwrap().acquire()).await.unwrap();
    assert!(next.token() > believed.token());
    assert!(!believed.is_held());
    held.check().unwrap();
    other.check().unwrap();
    cluster.heal();
    next.release().await.unwrap();
    drop(believed);
    drop(bounded(z.acquire()).await.unwrap());
}
