//! The first set-up, and sets that are refused.

use std::time::Duration;

use lockkit_core::{Error, ErrorKind, LockClient};
use lockkit_redis::init;
use lockkit_testbed::RedisMasters;

use crate::redlock::{backend, config, raw::NODE};

fn url(masters: &RedisMasters) -> String {
    format!("redlock://{}?request_timeout=500ms", masters.endpoints())
}

async fn init_at(url: &str) -> lockkit_core::Result<()> {
    init(&config(url).unwrap()).await
}

async fn refusal(url: &str) -> Error {
    LockClient::builder(backend(url).unwrap()).build().await.err().unwrap()
}

fn marker(masters: &RedisMasters, node: usize) -> String {
    masters.node(node).cli(&["HGET", NODE, "marker"]).unwrap().text().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_set_is_refused_until_it_is_set_up() {
    let masters = RedisMasters::start(3).unwrap();
    let url = url(&masters);
    let error = refusal(&url).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("lockkit init"), "{error}");
    assert!((0..3).all(|node| masters.node(node).keys("*").unwrap().is_empty()), "a refusal writes nothing");
    for _ in 0..2 {
        init_at(&url).await.unwrap();
        assert!((0..3).all(|node| marker(&masters, node) == "ready 60000"));
    }
    let client = LockClient::builder(backend(&url).unwrap()).build().await.unwrap();
    client.lock("x").unwrap().acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_up_needs_every_node_and_goes_on_after_an_interruption() {
    let mut masters = RedisMasters::start(3).unwrap();
    let url = url(&masters);
    masters.node_mut(1).kill().unwrap();
    let error = init_at(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&masters.node(1).endpoint()), "{error}");
    assert!(marker(&masters, 0).is_empty(), "it has begun without one of them");
    masters.node_mut(1).restart().unwrap();
    // What an interruption leaves, in the first step and in the second.
    for markers in
        [["preparing 60000", "preparing 60000", ""], ["preparing 60000", "ready 60000", "preparing 60000"]]
    {
        for (node, marker) in markers.iter().enumerate() {
            masters.node(node).cli(&["HSET", NODE, "marker", marker]).unwrap();
        }
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{markers:?}");
        assert!(error.to_string().contains("lockkit init"), "{error}");
        init_at(&url).await.unwrap();
        assert!((0..3).all(|node| marker(&masters, node) == "ready 60000"), "{markers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_ttl_is_the_same_for_all_clients_and_longer_ones_are_refused() {
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
async fn the_set_up_does_not_bring_emptied_nodes_back() {
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
async fn nodes_that_are_away_are_named() {
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
