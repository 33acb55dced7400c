//! The first set-up, and sets that are refused.

use std::time::Duration;

use lockkit_core::{Error, ErrorKind, LockClient};
use lockkit_redis::{SetUp, init};
use lockkit_testbed::RedisMasters;

use crate::redlock::{backend, config, raw::NODE};

fn url(masters: &RedisMasters) -> String {
    format!("redlock://{}?request_timeout=5s", masters.endpoints())
}

async fn init_at(url: &str) -> lockkit_core::Result<SetUp> {
    init(&config(url).unwrap()).await
}

async fn refusal(url: &str) -> Error {
    LockClient::builder(backend(url).unwrap()).build().await.err().unwrap()
}

fn marker(masters: &RedisMasters, node: usize) -> String {
    masters.node(node).cli(&["HGET", NODE, "marker"]).unwrap().text().to_owned()
}

/// The id of the set that all these nodes belong to, each with its number.
fn set_of(masters: &RedisMasters, nodes: std::ops::Range<usize>) -> String {
    let count = nodes.len();
    let mut sets: Vec<String> = Vec::new();
    for (number, node) in (1..).zip(nodes) {
        let marker = marker(masters, node);
        let set = marker.strip_prefix("ready 60000 ").and_then(|rest| rest.split_once(' '));
        let (set, place) = set.unwrap_or_else(|| panic!("{marker:?}"));
        assert_eq!(place, format!("{number}/{count}"));
        sets.push(set.to_owned());
    }
    sets.dedup();
    assert_eq!(sets.len(), 1, "{sets:?}");
    sets.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn new_nodes_are_refused_until_set_up() {
    let masters = RedisMasters::start(3).unwrap();
    let url = url(&masters);
    let error = refusal(&url).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    // The same error is returned if all nodes have lost their data.
    for what in ["lockkit init", "longest ttl"] {
        assert!(error.to_string().contains(what), "{error}");
    }
    assert!((0..3).all(|node| masters.node(node).keys("*").unwrap().is_empty()), "a refusal writes nothing");
    assert_eq!(init_at(&url).await.unwrap(), SetUp::Done);
    let set = set_of(&masters, 0..3);
    assert_eq!(init_at(&url).await.unwrap(), SetUp::Before);
    assert_eq!(set_of(&masters, 0..3), set);
    let client = LockClient::builder(backend(&url).unwrap()).build().await.unwrap();
    client.lock("x").unwrap().acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_needs_every_node_and_continues_after_an_interruption() {
    let mut masters = RedisMasters::start(3).unwrap();
    let url = url(&masters);
    masters.node_mut(1).kill().unwrap();
    let error = init_at(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&masters.node(1).endpoint()), "{error}");
    assert!(marker(&masters, 0).is_empty(), "the set-up began without one of the nodes");
    masters.node_mut(1).restart().unwrap();
    // What an interruption leaves, in the first step and in the second; and what two of them leave in the first step.
    for (markers, is_kept) in [
        (["preparing 60000 5f0c 1/3", "", "preparing 60000 5f0c 3/3"], false),
        (["preparing 60000 5f0c 1/3", "ready 60000 5f0c 2/3", "preparing 60000 5f0c 3/3"], true),
        (["preparing 60000 5f0c 1/3", "preparing 90000 0a0b 1/3", "empty 7"], false),
    ] {
        for (node, marker) in markers.iter().enumerate() {
            masters.node(node).cli(&["HSET", NODE, "marker", marker]).unwrap();
        }
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{markers:?}");
        assert!(error.to_string().contains("lockkit init"), "{error}");
        assert_eq!(init_at(&url).await.unwrap(), SetUp::Done);
        assert_eq!(set_of(&masters, 0..3) == "5f0c", is_kept, "{markers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_does_not_continue_another_run() {
    let masters = RedisMasters::start(3).unwrap();
    let url = url(&masters);
    // The third node had lost its data when a late request of the other run reached it.
    for (node, marker) in
        ["ready 60000 5f0c 1/3", "ready 60000 5f0c 2/3", "preparing 60000 0a0b 3/3"].iter().enumerate()
    {
        masters.node(node).cli(&["HSET", NODE, "marker", marker]).unwrap();
    }
    let error = init_at(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    // No client brings it back like a node without a marker.
    assert!(error.to_string().contains("another run"), "{error}");
    assert_eq!(marker(&masters, 2), "preparing 60000 0a0b 3/3");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_set_ups_make_one_set() {
    let masters = RedisMasters::start(3).unwrap();
    for _ in 0..20 {
        (0..3).for_each(|node| drop(masters.node(node).cli(&["FLUSHALL"]).unwrap()));
        many_at_once(&masters).await;
    }
}

async fn many_at_once(masters: &RedisMasters) {
    let url = url(masters);
    let runs = futures_util::future::join_all((0..8).map(|_| init_at(&url))).await;
    for run in runs {
        assert!(
            run.as_ref().is_ok_and(|_| true) || run.as_ref().unwrap_err().kind() == ErrorKind::Unavailable,
            "{run:?}"
        );
    }
    // A run that fails so is repeated; no node has lost anything.
    while init_at(&url).await.is_err_and(|error| error.kind() == ErrorKind::Unavailable) {}
    set_of(masters, 0..3);
    LockClient::builder(backend(&url).unwrap()).build().await.unwrap();
}

/// Two runs whose URLs name the nodes in another order meet at the first node that either changes.
#[tokio::test(flavor = "multi_thread")]
async fn set_up_begins_at_the_same_node_whatever_the_order_of_the_url() {
    let masters = RedisMasters::start(3).unwrap();
    let mut nodes: Vec<usize> = (0..3).collect();
    nodes.sort_by_key(|node| masters.node(*node).endpoint());
    // It can be read, but not changed.
    masters.node(nodes[0]).cli(&["ACL", "SETUSER", "default", "-hset"]).unwrap();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let endpoints = order.map(|place: usize| masters.node(nodes[place]).endpoint());
        let error =
            init_at(&format!("redlock://{}?request_timeout=5s", endpoints.join(","))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(nodes.iter().all(|node| marker(&masters, *node).is_empty()), "{order:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_with_another_longest_ttl_are_refused() {
    let masters = RedisMasters::start(3).unwrap();
    let url = url(&masters);
    init_at(&url).await.unwrap();
    let other = format!("{url}&max_ttl=90s");
    for error in [refusal(&other).await, init_at(&other).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("max_ttl"), "{error}");
    }
    let longer = LockClient::builder(backend(&url).unwrap()).ttl(Duration::from_secs(61)).build().await;
    assert_eq!(longer.err().unwrap().kind(), ErrorKind::InvalidConfig);
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_does_not_bring_emptied_nodes_back() {
    let masters = RedisMasters::start(3).unwrap();
    let url = url(&masters);
    init_at(&url).await.unwrap();
    masters.node(2).cli(&["FLUSHALL"]).unwrap();
    let error = init_at(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("lost their data"), "{error}");
    assert!(marker(&masters, 2).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_nodes_are_named() {
    let mut masters = RedisMasters::start(3).unwrap();
    let url = url(&masters);
    init_at(&url).await.unwrap();
    for node in [0, 2] {
        masters.node_mut(node).kill().unwrap();
    }
    let error = refusal(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for node in [0, 2] {
        assert!(error.to_string().contains(&masters.node(node).endpoint()), "{error}");
    }
    assert!(!error.to_string().contains(&masters.node(1).endpoint()), "{error}");
}
