//! Which nodes are one set, whatever clients call them.

use std::time::{Duration, Instant};

use lockkit_core::{Error, ErrorKind, LockClient, Status};
use lockkit_redis::init;
use lockkit_testbed::{Proxy, RedisMasters};

use crate::redlock::{backend, config, raw::NODE};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(60);

/// How long nodes that have lost their data stay out, where that is waited for.
const STAYS_OUT: Duration = Duration::from_secs(2);

fn url(endpoints: &[String]) -> String {
    format!("redlock://{}?request_timeout=5s", endpoints.join(","))
}

/// The same with a longest ttl that a test can wait for.
fn short(url: &str) -> String {
    format!("{url}&max_ttl={}s", STAYS_OUT.as_secs())
}

fn endpoints(masters: &RedisMasters, nodes: impl IntoIterator<Item = usize>) -> Vec<String> {
    nodes.into_iter().map(|node| masters.node(node).endpoint()).collect()
}

async fn set_up(masters: &RedisMasters, nodes: impl IntoIterator<Item = usize>) -> String {
    let url = url(&endpoints(masters, nodes));
    init(&config(&url).unwrap()).await.unwrap();
    url
}

async fn set_up_short(masters: &RedisMasters) -> String {
    let url = short(&url(&endpoints(masters, 0..3)));
    init(&config(&url).unwrap()).await.unwrap();
    url
}

async fn client(url: &str) -> LockClient {
    LockClient::builder(backend(url).unwrap()).build().await.unwrap()
}

async fn short_client(url: &str) -> LockClient {
    LockClient::builder(backend(url).unwrap()).ttl(STAYS_OUT).build().await.unwrap()
}

/// A client that meets the wrong node late goes on without it; one that meets it in time is refused.
async fn refusal(url: &str) -> Error {
    let start = Instant::now();
    loop {
        if let Err(error) = LockClient::builder(backend(url).unwrap()).build().await {
            return error;
        }
        assert!(start.elapsed() < HANG, "not refused");
    }
}

/// Neither a client nor the set-up takes these nodes, and both say why.
async fn is_refused(url: &str, why: &str) {
    for error in [refusal(url).await, init(&config(url).unwrap()).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

fn marker(masters: &RedisMasters, node: usize) -> String {
    masters.node(node).cli(&["HGET", NODE, "marker"]).unwrap().text().to_owned()
}

/// Acquires and releases until it is so.
async fn until(client: &LockClient, what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < HANG, "it did not come about that {what}");
        let guard = client.lock("x").unwrap().acquire_timeout(HANG).await.unwrap().unwrap();
        // On a busy machine it may be lost by now.
        let _ = guard.release().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_used_as_a_whole_and_by_itself() {
    let masters = RedisMasters::start(5).unwrap();
    let three = set_up(&masters, 0..3).await;
    // Its majority and that of the three would need no node in common.
    is_refused(&url(&endpoints(&masters, 0..5)), "the set has 3 nodes").await;
    client(&three).await;
    let masters = RedisMasters::start(5).unwrap();
    set_up(&masters, 0..5).await;
    is_refused(&url(&endpoints(&masters, 0..3)), "the set has 5 nodes").await;
    is_refused(&url(&endpoints(&masters, 0..3)), &masters.node(4).endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_two_sets_are_refused_whichever_has_the_majority() {
    let masters = RedisMasters::start(6).unwrap();
    set_up(&masters, 0..3).await;
    set_up(&masters, 3..6).await;
    is_refused(&url(&endpoints(&masters, [0, 1, 5])), "different sets").await;
    is_refused(&url(&endpoints(&masters, [0, 4, 5])), "different sets").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_named_twice_is_refused() {
    let masters = RedisMasters::start(3).unwrap();
    let alias = Proxy::start_redis(masters.node(0).endpoint()).unwrap();
    let twice = url(&[masters.node(0).endpoint(), alias.endpoint(), masters.node(1).endpoint()]);
    for _ in 0..2 {
        let error = init(&config(&twice).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("the same server"), "{error}");
    }
    // What it has left is in nobody's way.
    set_up(&masters, 0..3).await;
    is_refused(&twice, "the same server").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_turns_out_to_be_another_one_does_not_count_twice() {
    let masters = RedisMasters::start(3).unwrap();
    set_up(&masters, 0..3).await;
    let alias = Proxy::start_redis(masters.node(0).endpoint()).unwrap();
    alias.refuse();
    // The third address leads nowhere yet.
    let client =
        client(&url(&[masters.node(0).endpoint(), masters.node(1).endpoint(), alias.endpoint()])).await;
    client.lock("x").unwrap().acquire().await.unwrap().release().await.unwrap();
    alias.pass();
    masters.node(1).pause().unwrap();
    let start = Instant::now();
    loop {
        let error = client.lock("x").unwrap().try_acquire().await.unwrap_err();
        if error.to_string().contains("the same node") {
            break;
        }
        assert!(start.elapsed() < HANG, "{error}");
    }
    masters.node(1).resume().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_count_ends_no_wait_while_a_majority_may_come_back() {
    let mut masters = RedisMasters::start(3).unwrap();
    set_up(&masters, 0..3).await;
    let alias = Proxy::start_redis(masters.node(0).endpoint()).unwrap();
    alias.refuse();
    let client =
        client(&url(&[masters.node(0).endpoint(), masters.node(1).endpoint(), alias.endpoint()])).await;
    alias.pass();
    masters.node_mut(1).kill().unwrap();
    let lock = client.lock("x").unwrap();
    let outage = async {
        let start = Instant::now();
        for seen in 0..3 {
            loop {
                let error = client.lock("y").unwrap().try_acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                if error.to_string().contains("the same node") {
                    break;
                }
                assert!(start.elapsed() < HANG, "{error}, {seen}");
            }
        }
        masters.node_mut(1).restart().unwrap();
    };
    let (granted, ()) = futures_util::future::join(lock.acquire_timeout(HANG), outage).await;
    granted.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_outlives_a_new_set_up_joins_the_new_set() {
    let masters = RedisMasters::start(3).unwrap();
    let url = set_up_short(&masters).await;
    let client = short_client(&url).await;
    client.lock("x").unwrap().acquire().await.unwrap().release().await.unwrap();
    let mut status = client.status();
    (0..3).for_each(|node| drop(masters.node(node).cli(&["FLUSHALL"]).unwrap()));
    let over = async { while !matches!(status.changed().await, Status::Suspect { .. }) {} };
    tokio::time::timeout(HANG, over).await.expect("no node counts");
    init(&config(&url).unwrap()).await.unwrap();
    let guard = client.lock("x").unwrap().acquire_timeout(HANG).await.unwrap();
    let _ = guard.expect("the nodes are in order").release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_exchange_their_addresses_count_again() {
    let masters = RedisMasters::start(3).unwrap();
    let url = set_up_short(&masters).await;
    let client = short_client(&url).await;
    let markers = [marker(&masters, 0), marker(&masters, 1)];
    client.lock("x").unwrap().acquire().await.unwrap().release().await.unwrap();
    for (node, marker) in [(1, &markers[0]), (0, &markers[1])] {
        masters.node(node).cli(&["HSET", NODE, "marker", marker]).unwrap();
    }
    let guard = client.lock("x").unwrap().acquire_timeout(HANG).await.unwrap();
    let _ = guard.expect("a majority is in order").release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_may_be_called_otherwise_and_in_another_order() {
    let masters = RedisMasters::start(3).unwrap();
    let direct = client(&set_up(&masters, 0..3).await).await;
    let ways: Vec<Proxy> =
        [2, 0, 1].map(|node| Proxy::start_redis(masters.node(node).endpoint()).unwrap()).into();
    let by_other_names = url(&ways.iter().map(Proxy::endpoint).collect::<Vec<_>>());
    let other = client(&by_other_names).await;
    let guard = direct.lock("x").unwrap().acquire().await.unwrap();
    assert!(other.lock("x").unwrap().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    other.lock("x").unwrap().acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_when_the_client_connected_counts_when_it_is_back() {
    let mut masters = RedisMasters::start(3).unwrap();
    let url = set_up(&masters, 0..3).await;
    masters.node_mut(2).kill().unwrap();
    let client = client(&url).await;
    masters.node_mut(2).restart().unwrap();
    masters.node_mut(1).kill().unwrap();
    let guard = client.lock("x").unwrap().acquire_timeout(HANG).await.unwrap();
    guard.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_node_is_let_in_by_a_client_that_calls_it_as_at_the_set_up() {
    let mut masters = RedisMasters::start(3).unwrap();
    let url = set_up_short(&masters).await;
    let before = marker(&masters, 1);
    masters.node_mut(1).wipe().unwrap();
    // It never knew the node.
    until(&short_client(&url).await, "the node counts again", || marker(&masters, 1) == before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_never_of_the_set_is_not_let_in_for_one_that_was() {
    let masters = RedisMasters::start(4).unwrap();
    set_up_short(&masters).await;
    // Together with the first node it would be a majority that shares none with the second and third.
    let new = short_client(&short(&url(&endpoints(&masters, [0, 1, 3])))).await;
    let start = Instant::now();
    until(&new, "it was time", || start.elapsed() > 2 * STAYS_OUT).await;
    assert_eq!(marker(&masters, 3), "");
    masters.node(1).pause().unwrap();
    let error = new.lock("y").unwrap().try_acquire().await.unwrap_err();
    assert!(error.to_string().contains(&masters.node(3).endpoint()), "{error}");
    masters.node(1).resume().unwrap();
}

/// What a token must be above may be known to the one that is away.
#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_node_counts_again_only_with_a_majority_of_the_others() {
    let mut masters = RedisMasters::start(3).unwrap();
    let client = short_client(&set_up_short(&masters).await).await;
    masters.node_mut(2).kill().unwrap();
    masters.node_mut(0).wipe().unwrap();
    let start = Instant::now();
    while start.elapsed() < 2 * STAYS_OUT {
        let error = client.lock("x").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(marker(&masters, 0), "", "one other is enough");
        tokio::time::sleep(STAYS_OUT / 100).await;
    }
    masters.node_mut(2).restart().unwrap();
    until(&client, "the node counts again", || marker(&masters, 0).starts_with("ready")).await;
}
