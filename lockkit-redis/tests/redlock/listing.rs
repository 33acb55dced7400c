//! The pages of a listing, and what they cost.

use std::time::Duration;

use lockkit_conformance::direct::bounded;
use lockkit_core::backend::Admin;
use lockkit_redis::RedlockBackend;
use lockkit_testbed::{Direction, Flow, Proxy};

use crate::{
    command,
    redlock::{Masters, config, url_of},
};

/// A backend with a request timeout for a busy machine.
fn admin(endpoints: &[String]) -> RedlockBackend {
    RedlockBackend::new(config(&format!("{}?request_timeout=10s", url_of(endpoints))).unwrap())
}

/// The node that answers last has no more. The one that is down may have what the first one has.
#[tokio::test(flavor = "multi_thread")]
async fn listing_continues_while_any_node_has_more() {
    let masters = Masters::start_for_an_operator(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[1]).unwrap();
    let endpoints = [masters.endpoints[0].clone(), proxy.endpoint(), masters.endpoints[2].clone()];
    for (node, number) in [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)] {
        command(&masters, node, &["SET", &format!("more%2F{number}"), "x"]).await;
    }
    masters.with(|all| all.node_mut(2).kill()).await.unwrap();
    proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(200)));
    let admin = admin(&endpoints);
    let first = bounded(admin.list("more/", None, 2)).await.unwrap();
    assert_eq!((first.locks.len(), first.next.as_deref()), (2, Some("more/2")));
    let second = bounded(admin.list("more/", first.next.as_deref(), 2)).await.unwrap();
    assert_eq!((second.locks.len(), second.next), (1, None));
}

/// A node answers nobody else meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn each_request_of_a_listing_looks_at_a_few_keys() {
    const KEYS: u64 = 10_000;
    const FILL: &str = "for n = 1, ARGV[1] do redis.call('SET', n, 'x') end";
    let masters = Masters::start_for_an_operator(3).unwrap();
    for node in 0..3 {
        command(&masters, node, &["EVAL", FILL, "0", &KEYS.to_string()]).await;
    }
    let page = bounded(admin(&masters.endpoints).list("jobs/", None, 10)).await.unwrap();
    assert_eq!((page.locks.len(), page.next), (0, None));
    let scans =
        masters.with(|all| (0..3).map(|node| all.node(node).calls("scan")).sum::<anyhow::Result<u64>>());
    let scans = scans.await.unwrap();
    // Two nodes are enough.
    assert!(scans >= 2 * KEYS / 1_000, "{scans}");
}
