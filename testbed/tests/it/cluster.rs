//! An etcd cluster whose members are cut from each other, killed and paused.

use std::time::Instant;

use lockkit_testbed::{EtcdCluster, until};

/// One test with one cluster, because starting it takes longer than the rest.
#[test]
fn members_are_cut_killed_and_paused() {
    let started = Instant::now();
    let mut cluster = EtcdCluster::start().unwrap();
    println!("three members are healthy after {:?}", started.elapsed());
    cluster.member(0).put("a", "").unwrap();
    let next = cluster.move_leader().unwrap();
    until("another member leads", || cluster.leader().unwrap() == next);
    assert_eq!(cluster.member(0).leases().unwrap(), 0);

    let first = cluster.leader().unwrap();
    cluster.cut(first).unwrap();
    let other = (0..cluster.len()).find(|&member| member != first).unwrap();
    until("another member leads", || cluster.leader().unwrap() != first);
    until("the others accept a write", || cluster.member(other).put("b", "").is_ok());
    assert!(cluster.member(first).keys("").is_err(), "a member alone does not answer for the cluster");
    cluster.heal();
    until("the first one has caught up", || {
        cluster.member(first).keys("").is_ok_and(|keys| keys == ["a", "b"])
    });

    let deafened = cluster.leader().unwrap();
    // The others have to connect to it again, and meanwhile it posts its messages over connections of its own.
    cluster.cut(deafened).unwrap();
    cluster.heal();
    cluster.deafen(deafened);
    until("another member leads", || cluster.leader().unwrap() != deafened);
    cluster.heal();
    until("it serves again", || cluster.member(deafened).keys("").is_ok());

    let second = cluster.leader().unwrap();
    cluster.member_mut(second).kill().unwrap();
    assert_ne!(cluster.leader().unwrap(), second);
    cluster.member_mut(second).restart().unwrap();

    let third = cluster.leader().unwrap();
    cluster.member(third).pause().unwrap();
    assert_ne!(cluster.leader().unwrap(), third);
    cluster.member(third).resume().unwrap();
    until("the third one has caught up", || {
        cluster.member(third).keys("").is_ok_and(|keys| keys == ["a", "b"])
    });
}
