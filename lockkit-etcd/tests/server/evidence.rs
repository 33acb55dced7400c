//! Evidence: a write that compares it is refused as soon as the hold has ended.

use lockkit_core::backend::Evidence;

use crate::common::{LONG, acquire, fresh_name, own_server, plain, release, session};

#[path = "../../examples/etcd_guarded_writes.rs"]
#[allow(dead_code, reason = "its main function")]
mod example;

#[tokio::test(flavor = "multi_thread")]
async fn write_by_a_stale_holder_is_refused_before_the_next_one_has_written() {
    let etcd = own_server();
    let (one, other, name) = (session(&etcd, LONG).await, session(&etcd, LONG).await, fresh_name());
    let mut client = plain(&etcd).await;
    let stale = acquire(&one, &name).await;
    let evidence = stale.evidence().unwrap().clone();
    assert!(example::put_guarded(&mut client, &evidence, "balance", "1").await.unwrap());
    // The session ends, as it expires; its holder does not know it yet.
    one.close().await.unwrap();
    let held = acquire(&other, &name).await;
    assert!(!example::put_guarded(&mut client, &evidence, "balance", "2").await.unwrap());
    assert!(example::put_guarded(&mut client, held.evidence().unwrap(), "balance", "3").await.unwrap());
    assert_eq!(client.get("balance", None).await.unwrap().kvs()[0].value(), b"3");
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_is_not_that_of_a_later_hold_with_the_same_key() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let mut client = plain(&etcd).await;
    let first = acquire(&session, &name).await;
    release(&session, &first).await;
    let second = acquire(&session, &name).await;
    let [Evidence::CreateRevision { key: before, .. }, Evidence::CreateRevision { key, revision, .. }] =
        [first.evidence().unwrap(), second.evidence().unwrap()]
    else {
        panic!("another kind of evidence")
    };
    assert_eq!(before, key);
    assert_eq!(revision.unsigned_abs(), second.token().get());
    assert!(!example::put_guarded(&mut client, first.evidence().unwrap(), "x", "1").await.unwrap());
    assert!(example::put_guarded(&mut client, second.evidence().unwrap(), "x", "2").await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn example_refuses_the_stale_writer() {
    let etcd = own_server();
    assert_eq!(example::stale_writer(&etcd.url(), &etcd.endpoint()).await.unwrap(), "2 by the second holder");
}
