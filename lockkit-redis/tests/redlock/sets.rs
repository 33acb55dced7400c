//! Which nodes are one set, whatever names clients use for them.

use std::time::{Duration, Instant};

use lockkit_conformance::direct::{HANG, until};
use lockkit_core::{Error, ErrorKind, LockClient, Status};
use lockkit_redis::init;
use lockkit_testbed::{Proxy, RedisMasters};

use crate::redlock::{backend, config, raw::NODE};

/// How long nodes that have lost their data do not count, in tests that wait for it.
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

async fn set_up_short(masters: &RedisMasters, nodes: impl IntoIterator<Item = usize>) -> String {
    let url = short(&url(&endpoints(masters, nodes)));
    init(&config(&url).unwrap()).await.unwrap();
    url
}

async fn client(url: &str) -> LockClient {
    LockClient::builder(backend(url).unwrap()).build().await.unwrap()
}

async fn short_client(url: &str) -> LockClient {
    LockClient::builder(backend(url).unwrap()).ttl(STAYS_OUT).build().await.unwrap()
}

/// Waits until a client is refused. A client that meets the wrong node late continues without it; one that meets it in
/// time is refused.
async fn refusal(url: &str) -> Error {
    let start = Instant::now();
    loop {
        if let Err(error) = LockClient::builder(backend(url).unwrap()).build().await {
            return error;
        }
        assert!(start.elapsed() < HANG, "not refused");
    }
}

/// Checks that neither a client nor the set-up accepts these nodes, and that both say why.
async fn is_refused(url: &str, why: &str) {
    for error in [refusal(url).await, init(&config(url).unwrap()).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

fn marker(masters: &RedisMasters, node: usize) -> String {
    masters.node(node).cli(&["HGET", NODE, "marker"]).unwrap().text().to_owned()
}

/// Acquires and releases until the condition is true.
async fn acquire_until(client: &LockClient, what: &str, condition: impl Fn() -> bool) {
    until(what, async || {
        let is_met = condition();
        if !is_met {
            let guard = client.lock("x").unwrap().acquire_timeout(HANG).await.unwrap().unwrap();
            // On a busy machine the hold may be lost by now.
            let _ = guard.release().await;
        }
        is_met
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subsets_and_supersets_of_a_set_are_refused() {
    let masters = RedisMasters::start(5).unwrap();
    let three = set_up(&masters, 0..3).await;
    // A majority of the five and a majority of the three need not share a node.
    is_refused(&url(&endpoints(&masters, 0..5)), "the set has 3 nodes").await;
    client(&three).await;
    let masters = RedisMasters::start(5).unwrap();
    set_up(&masters, 0..5).await;
    is_refused(&url(&endpoints(&masters, 0..3)), "the set has 5 nodes").await;
    is_refused(&url(&endpoints(&masters, 0..3)), &masters.node(4).endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_two_sets_are_refused() {
    let masters = RedisMasters::start(6).unwrap();
    set_up(&masters, 0..3).await;
    set_up(&masters, 3..6).await;
    is_refused(&url(&endpoints(&masters, [0, 1, 5])), "different sets").await;
    is_refused(&url(&endpoints(&masters, [0, 4, 5])), "different sets").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_named_twice_is_refused() {
    let masters = RedisMasters::start(3).unwrap();
    let alias = Proxy::start_redis(masters.node(0).endpoint()).unwrap();
    let twice = url(&[masters.node(0).endpoint(), alias.endpoint(), masters.node(1).endpoint()]);
    for _ in 0..2 {
        let error = init(&config(&twice).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("the same server"), "{error}");
        for address in [masters.node(0).endpoint(), alias.endpoint()] {
            assert!(error.to_string().contains(&address), "{error}");
        }
    }
    // What the failed set-up left does not prevent another one.
    set_up(&masters, 0..3).await;
    is_refused(&twice, "the same server").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_found_at_two_addresses_counts_once() {
    let masters = RedisMasters::start(3).unwrap();
    set_up(&masters, 0..3).await;
    let alias = Proxy::start_redis(masters.node(0).endpoint()).unwrap();
    alias.refuse();
    // No server answers at the third address yet.
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
async fn node_that_does_not_count_does_not_fail_waiters() {
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
async fn client_joins_the_new_set_after_a_new_set_up() {
    let masters = RedisMasters::start(3).unwrap();
    let url = set_up_short(&masters, 0..3).await;
    let client = short_client(&url).await;
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    if let Err(error) = guard.release().await {
        // On a busy machine the hold may have ended by now.
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
    let mut status = client.status();
    (0..3).for_each(|node| drop(masters.node(node).cli(&["FLUSHALL"]).unwrap()));
    let over = async { while !matches!(status.changed().await, Status::Suspect { .. }) {} };
    tokio::time::timeout(HANG, over).await.expect("the client does not become suspect");
    init(&config(&url).unwrap()).await.unwrap();
    let guard = client.lock("x").unwrap().acquire_timeout(HANG).await.unwrap();
    let _ = guard.expect("the nodes count").release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_exchange_their_addresses_end_the_session_and_count_in_the_next() {
    /// A busy machine delays a heartbeat by far less.
    const SURVIVED: Duration = Duration::from_secs(15);
    let masters = RedisMasters::start(5).unwrap();
    let url = set_up(&masters, 0..5).await;
    let client = LockClient::builder(backend(&url).unwrap()).ttl(SURVIVED).build().await.unwrap();
    let markers = [marker(&masters, 0), marker(&masters, 1)];
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    for (node, marker) in [(1, &markers[0]), (0, &markers[1])] {
        masters.node(node).cli(&["HSET", NODE, "marker", marker]).unwrap();
    }
    let lost = tokio::time::timeout(HANG, held.lost()).await.expect("the hold is lost");
    // Not only when its deadline has passed.
    assert!(lost.to_string().contains("ended the session"), "{lost}");
    let guard = client.lock("x").unwrap().acquire_timeout(HANG).await.unwrap();
    let _ = guard.expect("a majority counts").release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_may_use_other_names_and_another_order() {
    let masters = RedisMasters::start(3).unwrap();
    let direct = client(&set_up(&masters, 0..3).await).await;
    let proxies: Vec<Proxy> =
        [2, 0, 1].map(|node| Proxy::start_redis(masters.node(node).endpoint()).unwrap()).into();
    let url_of_proxies = url(&proxies.iter().map(Proxy::endpoint).collect::<Vec<_>>());
    let other = client(&url_of_proxies).await;
    let guard = direct.lock("x").unwrap().acquire().await.unwrap();
    assert!(other.lock("x").unwrap().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    other.lock("x").unwrap().acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_was_down_at_connect_counts_later() {
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
async fn emptied_node_is_brought_back_under_its_set_up_name() {
    let mut masters = RedisMasters::start(3).unwrap();
    let url = set_up_short(&masters, 0..3).await;
    let before = marker(&masters, 1);
    masters.node_mut(1).wipe().unwrap();
    // This client has never met the node.
    acquire_until(&short_client(&url).await, "the node counts again", || marker(&masters, 1) == before).await;
}

/// That client may be gone. Its note stays.
#[tokio::test(flavor = "multi_thread")]
async fn emptied_node_with_the_note_of_another_client_is_brought_back() {
    let masters = RedisMasters::start(3).unwrap();
    let url = set_up_short(&masters, 0..3).await;
    let before = marker(&masters, 1);
    masters.node(1).cli(&["HSET", NODE, "marker", "empty 7"]).unwrap();
    acquire_until(&short_client(&url).await, "the node counts again", || marker(&masters, 1) == before).await;
}

/// By them other clients find out which node it is when it is emptied again.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_brought_back_keeps_the_names_of_the_set_up() {
    let masters = RedisMasters::start(3).unwrap();
    set_up_short(&masters, 0..3).await;
    let field = |name| masters.node(1).cli(&["HGET", NODE, name]).unwrap().text().to_owned();
    let before = [field("marker"), field("names")];
    let proxies = [0, 1, 2].map(|node| Proxy::start_redis(masters.node(node).endpoint()).unwrap());
    let client = short_client(&short(&url(&proxies.each_ref().map(Proxy::endpoint)))).await;
    let fence = ["EXISTS", "lockkit:{x}:fence"];
    acquire_until(&client, "the client knows the node", || {
        masters.node(1).cli(&fence).unwrap().number() == Some(1)
    })
    .await;
    masters.node(1).cli(&["DEL", NODE]).unwrap();
    acquire_until(&client, "the node counts again", || field("marker") == before[0]).await;
    assert_eq!(field("names"), before[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_server_does_not_replace_a_node() {
    let masters = RedisMasters::start(4).unwrap();
    set_up_short(&masters, 0..3).await;
    // Together with the first node it would be a majority that does not share a node with the second and third.
    let new = short_client(&short(&url(&endpoints(&masters, [0, 1, 3])))).await;
    let start = Instant::now();
    acquire_until(&new, "an empty node would count again", || start.elapsed() > 2 * STAYS_OUT).await;
    assert_eq!(marker(&masters, 3), "");
    masters.node(1).pause().unwrap();
    let error = new.lock("y").unwrap().try_acquire().await.unwrap_err();
    assert!(error.to_string().contains(&masters.node(3).endpoint()), "{error}");
    masters.node(1).resume().unwrap();
}

/// The node that is down may have the counter that a new token must be above.
#[tokio::test(flavor = "multi_thread")]
async fn emptied_node_counts_again_only_with_a_majority_of_the_others() {
    let mut masters = RedisMasters::start(3).unwrap();
    let client = short_client(&set_up_short(&masters, 0..3).await).await;
    masters.node_mut(2).kill().unwrap();
    masters.node_mut(0).wipe().unwrap();
    let start = Instant::now();
    while start.elapsed() < 2 * STAYS_OUT {
        let error = client.lock("x").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(marker(&masters, 0), "", "one other node was enough");
        tokio::time::sleep(STAYS_OUT / 100).await;
    }
    masters.node_mut(2).restart().unwrap();
    acquire_until(&client, "the node counts again", || marker(&masters, 0).starts_with("ready")).await;
}
