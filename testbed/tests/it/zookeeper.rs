//! ZooKeeper servers and ensembles: isolation, restart, faults, and their end with the test.

use std::{
    fs,
    io::Write,
    net::TcpStream,
    time::{Duration, Instant},
};

use lockkit_testbed::{ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions, until};

use crate::process::{pid_in, state_of, testbed};

#[test]
fn servers_share_nothing() {
    let (one, other) = (ZooKeeper::start().unwrap(), ZooKeeper::start().unwrap());
    assert_ne!(one.endpoint(), other.endpoint());
    one.create("/a", "1").unwrap();
    one.create("/a/b", "").unwrap();
    assert_eq!(one.children("/").unwrap(), ["a", "zookeeper"]);
    assert_eq!(one.children("/a").unwrap(), ["b"]);
    assert_eq!(other.children("/").unwrap(), ["zookeeper"]);
    assert!(one.create("/a", "1").is_err() && one.delete("/a").is_err());
    assert_eq!(one.children("/c").unwrap(), [""; 0]);
    assert!(one.delete("/a/b").unwrap() && one.delete("/a").unwrap() && !one.delete("/a").unwrap());
}

/// Without it each start takes a quarter more computing, and no other test fails.
#[test]
fn virtual_machine_maps_the_archive_of_classes() {
    let server = ZooKeeper::start().unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid().unwrap())).unwrap();
    assert!(maps.contains("/zookeeper-"), "{maps}");
}

#[test]
fn server_reports_its_counters() {
    let server = ZooKeeper::start().unwrap();
    let before = server.metrics().unwrap();
    let between = server.metrics().unwrap();
    assert_eq!(
        between.packets_received() - before.packets_received(),
        1,
        "a request for the counters is counted itself"
    );
    server.create("/a", "").unwrap();
    let after = server.metrics().unwrap();
    // Greeting, create, close, request for the counters.
    assert_eq!(after.packets_received() - between.packets_received(), 4);
    assert_eq!(after.nodes() - before.nodes(), 1);
    assert_eq!(server.watches().unwrap(), 0);
    assert!(server.ephemerals().unwrap().is_empty() && server.connections().unwrap().is_empty());
}

#[test]
fn data_address_and_port_survive_a_restart_but_not_a_wipe() {
    let mut server = ZooKeeper::start().unwrap();
    let (endpoint, pid) = (server.endpoint(), server.pid().unwrap());
    server.create("/a", "1").unwrap();
    server.kill().unwrap();
    assert!(server.children("/").is_err());
    assert_eq!(server.pid(), None);
    server.restart().unwrap();
    assert_eq!(server.endpoint(), endpoint);
    assert_ne!(server.pid(), Some(pid));
    assert_eq!(server.children("/").unwrap(), ["a", "zookeeper"]);
    server.create("/a/b", "").unwrap();
    assert_eq!(server.tree("/a").unwrap(), ["/a/b"]);
    assert!(server.tree("/").unwrap().starts_with(&["/a".to_owned(), "/zookeeper".to_owned()]));
    server.wipe().unwrap();
    assert_eq!(server.endpoint(), endpoint);
    assert_eq!(server.children("/").unwrap(), ["zookeeper"]);
}

#[test]
fn paused_server_answers_again_after_resume() {
    let server = ZooKeeper::start().unwrap();
    server.pause().unwrap();
    assert_eq!(state_of(server.pid().unwrap()), Some('T'));
    server.resume().unwrap();
    assert_eq!(server.children("/").unwrap(), ["zookeeper"]);
}

#[test]
fn sessions_and_nodes_are_cleared() {
    let server = ZooKeeper::start().unwrap();
    assert!(server.end_session(0x1234).unwrap_err().to_string().contains("no session 0x1234"));
    server.create("/a", "").unwrap();
    server.create("/a/b", "").unwrap();
    // A session whose client keeps silent, as one does whose test has ended.
    let mut silent = TcpStream::connect(server.endpoint()).unwrap();
    // Length; version, last transaction, session timeout; no session, and a password of 16 bytes.
    let greeting = [&44_i32.to_be_bytes()[..], &[0; 12], &10_000_i32.to_be_bytes(), &[0; 8]].concat();
    silent.write_all(&[&greeting[..], &16_i32.to_be_bytes(), &[0; 16]].concat()).unwrap();
    until("it has a session", || server.sessions().unwrap() == 1);
    server.clear().unwrap();
    assert_eq!(server.children("/").unwrap(), ["zookeeper"]);
    assert_eq!((server.sessions().unwrap(), server.connections().unwrap()), (0, Vec::new()));
}

#[test]
fn packet_longer_than_the_buffer_is_refused() {
    let options = ZooKeeperOptions { buffer_bytes: 2_000, ..Default::default() };
    let server = ZooKeeper::start_with(options).unwrap();
    server.create("/a", &"x".repeat(1_000)).unwrap();
    assert!(server.create("/b", &"x".repeat(3_000)).is_err());
}

#[test]
fn login_keeps_other_users_out() {
    let login = Some(("app".to_owned(), "secret".to_owned()));
    let options = ZooKeeperOptions { login, ..Default::default() };
    assert!(!format!("{options:?}").contains("secret"));
    let server = ZooKeeper::start_with(options).unwrap();
    assert!(server.create("/a", "").is_err());
}

#[test]
fn server_and_folder_of_a_killed_process_are_removed() {
    let (mut process, line) = testbed("zk");
    assert!(line.starts_with("zk://127."), "{line}");
    let pid = pid_in(&line);
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    let configuration =
        command.split('\0').find(|argument| argument.ends_with("zoo.cfg")).unwrap().to_owned();
    assert!(fs::exists(&configuration).unwrap());
    process.kill().unwrap();
    process.wait().unwrap();
    until("the server has ended", || state_of(pid).is_none() && !fs::exists(&configuration).unwrap());
}

/// One test with one ensemble, because starting it takes longer than the rest.
#[test]
fn members_are_cut_killed_and_paused() {
    let started = Instant::now();
    // A member notices soon that it is cut off, but not before the test has seen that it still serves.
    let options = ZooKeeperOptions { sync_limit: 4, ..Default::default() };
    let mut ensemble = ZooKeeperEnsemble::start_with(options).unwrap();
    println!("three members serve after {:?}", started.elapsed());
    ensemble.member(0).create("/a", "").unwrap();

    let first = ensemble.leader().unwrap();
    ensemble.cut(first).unwrap();
    until("another member leads", || ensemble.leader().unwrap() != first);
    let follower = ensemble.follower().unwrap();
    let other = if follower == first { ensemble.leader().unwrap() } else { follower };
    until("the others accept a write", || ensemble.member(other).create("/b", "").is_ok());
    assert!(ensemble.member(first).children("/").is_err(), "a member without a quorum serves");
    ensemble.heal();
    until("the first one has caught up", || {
        ensemble.member(first).children("/").is_ok_and(|nodes| nodes == ["a", "b", "zookeeper"])
    });

    let second = ensemble.leader().unwrap();
    ensemble.member_mut(second).kill().unwrap();
    assert_ne!(ensemble.leader().unwrap(), second);
    ensemble.member_mut(second).restart().unwrap();

    let third = ensemble.leader().unwrap();
    ensemble.member(third).pause().unwrap();
    assert_ne!(ensemble.leader().unwrap(), third);
    ensemble.member(third).resume().unwrap();
    until("the third one has caught up", || {
        ensemble.member(third).children("/").is_ok_and(|nodes| nodes == ["a", "b", "zookeeper"])
    });
}

#[test]
fn deafened_follower_stops_serving_and_delayed_one_does_not() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let (leader, follower) = (ensemble.leader().unwrap(), ensemble.follower().unwrap());
    // Shorter than the leader waits for a follower.
    let delay = Duration::from_secs(1);
    ensemble.delay(follower, delay);
    let started = Instant::now();
    ensemble.member(leader).create("/a", "").unwrap();
    until("the follower has the node", || {
        ensemble.member(follower).metrics().unwrap().nodes()
            == ensemble.member(leader).metrics().unwrap().nodes()
    });
    assert!(started.elapsed() >= delay);

    ensemble.heal();
    ensemble.deafen(follower);
    ensemble.member(leader).create("/b", "").unwrap();
    let nodes = |member| ensemble.member(member).metrics().map(|metrics| metrics.nodes());
    assert!(nodes(follower).unwrap() < nodes(leader).unwrap(), "the follower has the new node");
    until("the follower stops serving", || nodes(follower).is_err());
    ensemble.heal();
    until("the follower has caught up", || {
        nodes(follower).is_ok_and(|nodes_there| nodes_there == nodes(leader).unwrap())
    });
}
