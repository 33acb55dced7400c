//! Who is notified of a release.

use lockkit_conformance::direct::bounded;
use lockkit_testbed::Redis;
use redis::{Client, PushInfo, PushKind, aio::MultiplexedConnection, from_redis_value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{node, two};
use crate::redlock::{patient::patient, raw::Claimant};

/// Every waiter receives it after the hints.
const LAST: &str = "last";

fn channel(of: &Claimant) -> String {
    format!("lockkit:released:{}", of.lock)
}

/// A client that waits.
struct Waiter {
    _connection: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
}

impl Waiter {
    async fn new(node: &Redis, of: &Claimant, group: u8) -> Self {
        let client = Client::open(format!("{}/?protocol=resp3", node.url())).unwrap();
        let (sender, pushes) = unbounded_channel();
        let config = patient().set_push_sender(sender);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        let own_group = format!("lockkit:released:lockkit:{group}:{}", of.lock);
        connection.subscribe(&[&*channel(of), &*own_group, LAST]).await.unwrap();
        Self { _connection: connection, pushes }
    }

    /// Returns the texts that came before the last message.
    async fn received(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        loop {
            let push = bounded(self.pushes.recv()).await.unwrap();
            if push.kind == PushKind::Message {
                let [channel, text] = <[_; 2]>::try_from(push.data).unwrap();
                if from_redis_value::<String>(channel).unwrap() == LAST {
                    return texts;
                }
                texts.push(from_redis_value(text).unwrap());
            }
        }
    }
}

/// Acquires the lock by a claim whose id begins so, and releases it. Returns what each waiter received.
async fn hints(
    node: &Redis,
    claimant: &mut Claimant,
    claim_begins: &str,
    waiters: &mut [Waiter],
) -> Vec<Vec<String>> {
    claimant.claim.replace_range(..claim_begins.len(), claim_begins);
    claimant.ask(node, 0).unwrap();
    assert_eq!(claimant.release(node, &channel(claimant)).unwrap(), 1);
    node.cli(&["PUBLISH", LAST, ""]).unwrap();
    let mut received = Vec::new();
    for waiter in waiters {
        received.push(waiter.received().await);
    }
    received
}

#[tokio::test(flavor = "multi_thread")]
async fn release_notifies_both_of_two_clients_and_one_group_of_more() {
    let (node, (mut claimant, _)) = (node(), two());
    let mut waiters = Vec::new();
    for group in [1, 9] {
        waiters.push(Waiter::new(&node, &claimant, group).await);
    }
    assert_eq!(hints(&node, &mut claimant, "01", &mut waiters).await, [["2"], ["2"]]);
    waiters.push(Waiter::new(&node, &claimant, 1).await);
    let (one, nine) = ([1, 0, 1], [0, 1, 0]);
    for (claim, expected) in [
        // Where it begins, and the stride: 1, 3, or -1.
        ("0100", one),
        ("0900", nine),
        ("4100", one),
        ("0200", nine),
        ("021f", one),
        ("ff00", one),
        ("ffff", nine),
        ("0001", nine),
        // Not the claim of a client.
        ("-1-1", one),
        ("zzzz", one),
    ] {
        let received = hints(&node, &mut claimant, claim, &mut waiters).await;
        assert_eq!([0, 1, 2].map(|waiter| received[waiter].len()), expected, "{claim}");
        let members = expected.iter().sum::<usize>().to_string();
        assert!(received.concat().iter().all(|text| *text == members), "{claim}: {received:?}");
    }
}

#[test]
fn release_without_waiters_publishes_nothing() {
    let (node, (one, _)) = (node(), two());
    one.ask(&node, 0).unwrap();
    one.release(&node, &channel(&one)).unwrap();
    assert_eq!((node.calls("pubsub|numsub").unwrap(), node.calls("publish").unwrap()), (1, 0));
}

/// How many there are is not known then.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_count_all_clients_are_notified() {
    let (node, (mut claimant, _)) = (node(), two());
    node.cli(&["ACL", "SETUSER", "default", "-pubsub"]).unwrap();
    let mut waiters = Vec::new();
    for group in [1, 9, 1] {
        waiters.push(Waiter::new(&node, &claimant, group).await);
    }
    assert_eq!(hints(&node, &mut claimant, "01", &mut waiters).await, [[""]; 3]);
}
