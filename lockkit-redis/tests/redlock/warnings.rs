//! Warnings about nodes that may lose acknowledged writes.

use lockkit_conformance::direct::{LONG, LogText, until};
use lockkit_core::{Clock, backend::Backend};
use lockkit_redis::init;
use lockkit_testbed::{Redis, RedisMasters};
use tracing::Level;

use crate::redlock::{backend, config, raw::NODE};

/// The log of a connect, until the `INFO` of each of three nodes was requested.
fn log(masters: &RedisMasters, login: &str) -> String {
    let url = format!("redlock://{login}{}", masters.endpoints());
    log_of(
        &url,
        async || {
            init(&config(&url).unwrap()).await.unwrap();
        },
        |log| log.lines().filter(|line| is_info_result(line)).count() == 3,
    )
}

/// The log from before `prepare` and a connect, until it is enough.
fn log_of(url: &str, prepare: impl AsyncFnOnce(), is_enough: impl Fn(&str) -> bool) -> String {
    let log = LogText::of_this_thread(Level::DEBUG);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connect = async {
        prepare().await;
        let session = backend(url).unwrap().open_session(LONG, Clock::boot()).await.unwrap();
        until("the log has enough", async || {
            // Finds what a node has replied too late to be seen when the session began.
            session.renew(&[]).await;
            is_enough(&log.text())
        })
        .await;
    };
    runtime.block_on(connect);
    log.text()
}

fn is_info_result(line: &str) -> bool {
    line.contains("INFO was read") || line.contains("cannot read INFO")
}

fn warnings(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains(" WARN ")).collect()
}

#[test]
fn nodes_without_append_only_file_are_warned_about() {
    let durable = RedisMasters::start(3).unwrap();
    assert_eq!(warnings(&log(&durable, "")), [""; 0]);
    let forgetful = RedisMasters::start_with(3, &["--appendonly", "no"]).unwrap();
    let text = log(&forgetful, "");
    assert_eq!(warnings(&text).len(), 3, "{text}");
    for node in 0..3 {
        let name = forgetful.node(node).endpoint();
        let names = |line: &&str| line.contains("append-only") && line.contains(&name);
        assert!(warnings(&text).iter().any(names), "{text}");
    }
}

#[test]
fn half_set_up_node_is_reported_as_half_set_up() {
    let masters = RedisMasters::start(3).unwrap();
    for (node, phase) in ["ready", "ready", "preparing"].iter().enumerate() {
        let marker = format!("{phase} 60000 5f0c {}/3", node + 1);
        masters.node(node).cli(&["HSET", NODE, "marker", &marker]).unwrap();
    }
    let url = format!("redlock://{}", masters.endpoints());
    let text = log_of(&url, async || {}, |log| log.contains("this node does not count"));
    let warning = warnings(&text).into_iter().find(|line| line.contains("this node does not count")).unwrap();
    assert!(warning.contains("lockkit init") && warning.contains(&masters.node(2).endpoint()), "{warning}");
}

#[test]
fn server_that_is_no_node_of_the_set_is_reported_as_unknown() {
    let masters = RedisMasters::start(3).unwrap();
    for node in 0..2 {
        let marker = format!("ready 60000 5f0c {}/3", node + 1);
        masters.node(node).cli(&["HSET", NODE, "marker", &marker]).unwrap();
    }
    let is_reported =
        |line: &str| line.contains("does not know it") && line.contains("this node does not count");
    let url = format!("redlock://{}", masters.endpoints());
    let text = log_of(&url, async || {}, |log| log.lines().any(is_reported));
    let warning = warnings(&text).into_iter().find(|line| is_reported(line)).unwrap();
    assert!(warning.contains(&masters.node(2).endpoint()), "{warning}");
}

#[test]
fn node_with_a_replica_is_warned_about() {
    let masters = RedisMasters::start(3).unwrap();
    let replica = Redis::start().unwrap();
    let node = masters.node(1).endpoint();
    let (host, port) = node.split_once(':').unwrap();
    replica.cli(&["REPLICAOF", host, port]).unwrap();
    lockkit_testbed::until("the replica connects", || replica.is_replicating().unwrap());
    let text = log(&masters, "");
    let warned = warnings(&text);
    assert!(warned.len() == 1 && warned[0].contains("replica") && warned[0].contains(&node), "{text}");
}

#[test]
fn nodes_that_may_evict_are_warned_about() {
    let masters = RedisMasters::start_with(3, &["--maxmemory-policy", "allkeys-lru"]).unwrap();
    let text = log(&masters, "");
    assert_eq!(warnings(&text).iter().filter(|line| line.contains("allkeys-lru")).count(), 3, "{text}");
}

#[test]
fn user_without_the_info_right_can_lock() {
    let rights = crate::redlock::rights::RIGHTS.replace("+info", "");
    let user = crate::redlock::rights::user(&rights);
    let options = [&["--appendonly", "no", "--user"], &*user].concat();
    let masters = RedisMasters::start_with(3, &options).unwrap();
    let text = log(&masters, &format!("{}@", crate::redlock::rights::LOGIN));
    assert_eq!(warnings(&text), [""; 0]);
    assert_eq!(text.lines().filter(|line| line.contains("cannot read INFO")).count(), 3, "{text}");
}
