//! The proxy between etcd and its clients: lost messages of streams, and lost replies.

use std::{collections::VecDeque, sync::OnceLock, time::Duration};

use etcd_client::{EventType, PutOptions, WatchOptions};
use lockkit_testbed::{Etcd, HANG, Message, Proxy};

/// The server of all tests. Each uses keys of its own.
fn shared() -> &'static Etcd {
    static SHARED: OnceLock<Etcd> = OnceLock::new();
    SHARED.get_or_init(|| Etcd::start().unwrap())
}

async fn bounded<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, work).await.unwrap()
}

async fn until_dropped(proxy: &Proxy, messages: u64) {
    let dropped = async {
        while proxy.counts().dropped != messages {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    bounded(dropped).await;
}

async fn client_of(proxy: &Proxy) -> etcd_client::Client {
    etcd_client::Client::connect([proxy.endpoint()], None).await.unwrap()
}

/// A watch, and its events that were not looked at yet: a busy server sends several in one message.
struct Events {
    watch: etcd_client::WatchStream,
    received: VecDeque<(EventType, String)>,
}

impl Events {
    /// Waits until the server watches.
    async fn of(client: &mut etcd_client::Client, prefix: &str, options: WatchOptions) -> Self {
        let mut watch = client.watch(prefix, Some(options.with_prefix())).await.unwrap();
        assert!(bounded(watch.message()).await.unwrap().unwrap().created());
        Self { watch, received: VecDeque::new() }
    }

    async fn next(&mut self) -> (EventType, String) {
        loop {
            if let Some(event) = self.received.pop_front() {
                return event;
            }
            let message = bounded(self.watch.message()).await.unwrap().unwrap();
            let events = message.events().iter();
            self.received.extend(
                events.map(|event| (event.event_type(), event.kv().unwrap().key_str().unwrap().to_owned())),
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_deletions_are_dropped_and_the_stream_stays_open() {
    let etcd = shared();
    let prefix = "deletions".to_owned();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let mut client = client_of(&proxy).await;
    let mut events = Events::of(&mut client, &prefix, WatchOptions::new().with_prev_key()).await;
    proxy.drop_messages(Message::Deletions, |_| true);
    let key = |n: usize| format!("{prefix}/{n}");
    // Drops more bytes than the flow control window of a stream in the client crate (2 MiB).
    for n in 0..300 {
        let value = "x".repeat(12_000);
        client.put(key(n), value, None).await.unwrap();
        client.delete(key(n), None).await.unwrap();
        assert_eq!(events.next().await, (EventType::Put, key(n)));
    }
    until_dropped(&proxy, 300).await;
    proxy.pass();
    client.put(key(0), "", None).await.unwrap();
    client.delete(key(0), None).await.unwrap();
    assert_eq!(events.next().await, (EventType::Put, key(0)));
    assert_eq!(events.next().await, (EventType::Delete, key(0)));
    assert_eq!(proxy.counts().accepted, 1, "the connection is still the first one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_among_other_events_is_dropped_alone() {
    let etcd = shared();
    let prefix = "mixed".to_owned();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let mut client = client_of(&proxy).await;
    client.put(format!("{prefix}/old"), "", None).await.unwrap();
    let mut events = Events::of(&mut client, &prefix, WatchOptions::new()).await;
    proxy.drop_messages(Message::Deletions, |n| n == 1);
    // One transaction, so that one message has both.
    let both = [
        etcd_client::TxnOp::delete(format!("{prefix}/old"), None),
        etcd_client::TxnOp::put(format!("{prefix}/new"), "", Some(PutOptions::new())),
    ];
    client.txn(etcd_client::Txn::new().and_then(both)).await.unwrap();
    assert_eq!(events.next().await, (EventType::Put, format!("{prefix}/new")));
    client.delete(format!("{prefix}/new"), None).await.unwrap();
    assert_eq!(events.next().await, (EventType::Delete, format!("{prefix}/new")));
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alives_are_lost_one_by_one() {
    let etcd = shared();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let mut client = client_of(&proxy).await;
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await.unwrap();
    proxy.drop_messages(Message::KeepAlives, |n| n == 2);
    for _ in 0..3 {
        keeper.keep_alive().await.unwrap();
    }
    for _ in 0..2 {
        assert_eq!(bounded(answers.message()).await.unwrap().unwrap().id(), lease);
    }
    until_dropped(&proxy, 1).await;
    let third = tokio::time::timeout(Duration::from_millis(100), answers.message()).await;
    assert!(third.is_err(), "all three were answered");
    client.lease_revoke(lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reply_to_the_second_call_is_swallowed() {
    let etcd = shared();
    let key = "replies".to_owned();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let mut client = client_of(&proxy).await;
    let mut events = Events::of(&mut client, &key, WatchOptions::new()).await;
    proxy.swallow_reply(2);
    client.put(key.clone(), "1", None).await.unwrap();
    // Messages of a stream do not count as replies.
    assert_eq!(events.next().await.0, EventType::Put);
    bounded(client.put(key.clone(), "2", None)).await.unwrap_err();
    let found = bounded(client_of(&proxy).await.get(key, None)).await.unwrap();
    assert_eq!(found.kvs()[0].value(), b"2", "the server has executed it");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_pass_through_whole() {
    let etcd = shared();
    let prefix = "lists".to_owned();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let mut client = client_of(&proxy).await;
    let value = "x".repeat(1_000);
    for n in 0..300 {
        client.put(format!("{prefix}/{n}"), value.as_str(), None).await.unwrap();
    }
    let all = etcd_client::GetOptions::new().with_prefix();
    let found = bounded(client.get(prefix.clone(), Some(all))).await.unwrap();
    assert!(found.kvs().len() == 300 && found.kvs().iter().all(|kv| kv.value() == value.as_bytes()));
}
