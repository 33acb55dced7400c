//! Other libraries that lock with SET NX on a majority of the same nodes.

use std::time::Duration;

use lockkit_conformance::direct::until;
use lockkit_core::{LockClient, LockName, backend::Admin};
use lockkit_redis::RedlockBackend;

use crate::redlock::{Masters, backend, config};

const KEY: &str = "orders/42";

/// Locks at these nodes as such a library does. Returns how many nodes granted.
async fn set_nx(masters: &Masters, nodes: std::ops::Range<usize>) -> usize {
    let set = masters.with(move |all| {
        let mut granted = 0;
        for node in nodes {
            let reply = all.node(node).cli(&["SET", KEY, "f00d", "NX", "PX", "60000"])?;
            granted += usize::from(reply.text() == "OK");
        }
        Ok(granted)
    });
    set.await.unwrap()
}

async fn is_free(masters: &Masters) -> bool {
    masters
        .with(|all| {
            (0..3).try_fold(true, |is_free, node| {
                Ok(is_free && all.node(node).cli(&["GET", KEY])?.text().is_empty())
            })
        })
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn other_redlock_clients_and_lockkit_exclude_each_other() {
    let masters = Masters::start(3).unwrap();
    let url = format!("{}?names=raw", masters.url());
    let client = LockClient::builder(backend(&url).unwrap()).build().await.unwrap();
    let guard = client.lock(KEY).unwrap().acquire().await.unwrap();
    // A majority has granted; the last node may execute the ask a moment later.
    until("every node has the lock", async || {
        let has = masters.with(|all| {
            (0..3)
                .try_fold(true, |has, node| Ok(has && !all.node(node).cli(&["GET", KEY])?.text().is_empty()))
        });
        has.await.unwrap()
    })
    .await;
    assert_eq!(set_nx(&masters, 0..3).await, 0);
    guard.release().await.unwrap();
    // A majority has confirmed it.
    until("nothing is left", async || is_free(&masters).await).await;
    assert_eq!(set_nx(&masters, 1..3).await, 2);
    assert!(client.lock(KEY).unwrap().try_acquire().await.unwrap().is_none());
    let holder = RedlockBackend::new(config(&url).unwrap());
    let holder = holder.inspect(&LockName::new(KEY).unwrap()).await.unwrap().holder.unwrap();
    assert_eq!((&*holder.entry, holder.token, holder.metadata), (KEY, None, None), "the value is a secret");
    let deleted = masters.with(|all| (0..3).try_for_each(|node| all.node(node).cli(&["DEL", KEY]).map(drop)));
    deleted.await.unwrap();
    let guard = client.lock(KEY).unwrap().acquire_timeout(Duration::from_secs(30)).await.unwrap().unwrap();
    guard.release().await.unwrap();
    until("nothing is left", async || is_free(&masters).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_holder_token_and_metadata() {
    let masters = Masters::start(3).unwrap();
    let client = LockClient::builder(backend(&masters.url()).unwrap()).label("me").build().await.unwrap();
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    let holder = client.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(holder.token, Some(guard.token()));
    assert_eq!(holder.metadata.unwrap().label.as_deref(), Some("me"));
    guard.release().await.unwrap();
    assert!(client.inspect("x").await.unwrap().holder.is_none());
}
