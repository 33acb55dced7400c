//! Nodes that an operator deletes.

use lockkit_core::{ErrorKind, backend::Renewal};
use lockkit_testbed::{Direction, Flow, Proxy};

use crate::common::{
    LONG, SHORT, acquire, assert_error, bounded, enqueued, fresh_name, heartbeat, is_entry_gone, is_renewed,
    mark, node, own_server, patient_url, plain, queue, refusal, release, session, session_at, shared, until,
    watching,
};

#[tokio::test(flavor = "multi_thread")]
async fn operators_delete_of_a_holders_node_ends_only_that_hold() {
    let server = shared();
    for form in ["curator", "single"] {
        let url = format!("{}/?form={form}", server.url());
        let (session, other) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
        let (name, kept_name) = (fresh_name(), fresh_name());
        let deleted = acquire(&session, &name).await;
        let kept = acquire(&session, &kept_name).await;
        let deleted_node = match form {
            "single" => node(&name),
            _ => format!("{}/{}", node(&name), queue(server, &name)[0]),
        };
        assert!(server.delete(&deleted_node).unwrap());
        // In the single form, the next holder's node has the same name.
        let next = acquire(&other, &name).await;
        let heartbeat = heartbeat(&session, &[&deleted, &kept]).await;
        assert!(is_renewed(&heartbeat.session), "{heartbeat:?}");
        for (id, renewal) in heartbeat.holds {
            assert_eq!(matches!(renewal, Renewal::Gone), id == deleted.claim(), "{form}: {renewal:?}");
        }
        release(&session, &deleted).await;
        assert!(
            is_renewed(&crate::common::heartbeat(&other, &[&next]).await.holds[0].1),
            "the newer grant is gone"
        );
        release(&other, &next).await;
        release(&session, &kept).await;
    }
}

/// Numbers restart with a new directory, and in the bare form names recur.
#[tokio::test(flavor = "multi_thread")]
async fn new_node_with_a_deleted_ones_name_is_not_mistaken_for_it() {
    let server = own_server();
    let url = format!("{}/?form=bare", server.url());
    let (session, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let deleted = acquire(&session, &name).await;
    let waiting = watching(&server, &session, &name).await;
    let before = queue(&server, &name);
    // The waiter's node is deleted first; otherwise the waiter would be granted.
    for number in [1, 0] {
        assert!(server.delete(&format!("{}/lock-{number:010}", node(&name))).unwrap());
    }
    assert!(is_entry_gone(&waiting.ends().await));
    assert!(server.delete(&node(&name)).unwrap());
    let next = acquire(&other, &name).await;
    assert!(before.contains(&queue(&server, &name)[0]), "the name does not recur");
    let renewals = heartbeat(&session, &[&deleted]).await;
    assert!(is_renewed(&renewals.session) && matches!(renewals.holds[0].1, Renewal::Gone), "{renewals:?}");
    release(&session, &deleted).await;
    assert!(is_renewed(&heartbeat(&other, &[&next]).await.holds[0].1), "the newer grant is gone");
    release(&other, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_delete_of_a_waiters_node_ends_its_wait() {
    let (server, name) = (shared(), fresh_name());
    // Time for a re-check; nothing renews it meanwhile.
    let session = session(server, 2 * SHORT).await;
    let held = acquire(&session, &name).await;
    let deleted = enqueued(&session, &name).await;
    let behind = enqueued(&session, &name).await;
    let child = queue(server, &name).into_iter().find(|child| child.contains(&mark(&deleted.claim))).unwrap();
    assert!(server.delete(&format!("{}/{child}", node(&name))).unwrap());
    assert!(is_entry_gone(&deleted.ends().await));
    release(&session, &held).await;
    release(&session, &behind.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_whose_node_is_gone_is_not_granted_on_wake() {
    let (server, name) = (own_server(), fresh_name());
    // Its next re-check is 9 s away, so only the event wakes it.
    let session = session(&server, LONG).await;
    let held = acquire(&session, &name).await;
    let deleted = watching(&server, &session, &name).await;
    let child =
        queue(&server, &name).into_iter().find(|child| child.contains(&mark(&deleted.claim))).unwrap();
    assert!(server.delete(&format!("{}/{child}", node(&name))).unwrap());
    release(&session, &held).await;
    assert!(is_entry_gone(&deleted.ends().await));
}

/// An operator deletes all nodes first, so the waiter's watch fires before the directory is gone.
#[tokio::test(flavor = "multi_thread")]
async fn operators_delete_of_a_lock_with_its_directory_ends_the_wait() {
    let (server, name) = (own_server(), fresh_name());
    let holder = session(&server, LONG).await;
    let held = acquire(&holder, &name).await;
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let waiter = session_at(&patient_url(&proxy), LONG).await;
    let deleted = watching(&server, &waiter, &name).await;
    let mut nodes = queue(&server, &name);
    nodes.sort_by_key(|child| child.contains(&mark(&deleted.claim)));
    proxy.set(Direction::Requests, Flow::Hold);
    for child in nodes {
        assert!(server.delete(&format!("{}/{child}", node(&name))).unwrap());
        // In a list, the path of the directory is followed by "no watch".
        until("its list is under way", async || proxy.holds(&format!("{}\0", node(&name)))).await;
    }
    assert!(server.delete(&node(&name)).unwrap());
    proxy.pass();
    assert!(is_entry_gone(&deleted.ends().await));
    release(&holder, &held).await;
}

/// Where the lock is one node, a release checks the version of the client's own node. An old release could hit the next
/// holder's node if versions repeated.
#[tokio::test(flavor = "multi_thread")]
async fn release_raises_the_version_above_the_last_whatever_became_of_the_clients_own_node() {
    let server = own_server();
    let session = session_at(&format!("{}/?form=single", server.url()), LONG).await;
    let own = format!("/lockkit/:clients/{}", server.children("/lockkit/:clients").unwrap()[0]);
    let operator = plain(&server).await;
    let version = async || operator.check_stat(&own).await.unwrap().map(|stat| stat.version);
    let first = acquire(&session, &fresh_name()).await;
    operator.set_data(&own, b"", None).await.unwrap();
    release(&session, &first).await;
    assert_eq!(version().await, Some(2));
    let second = acquire(&session, &fresh_name()).await;
    release(&session, &second).await;
    assert_eq!(version().await, Some(2), "a new version without a reason");
    let third = acquire(&session, &fresh_name()).await;
    assert!(server.delete(&own).unwrap());
    release(&session, &third).await;
    assert_eq!(version().await, Some(3));
    assert_eq!(server.children("/lockkit").unwrap(), [":clients"]);
}

/// Whatever raises the version overtakes a release that is under way: other releases, or an operator's writes.
#[tokio::test(flavor = "multi_thread")]
async fn release_that_is_overtaken_is_sent_ten_times() {
    const TRIES: i32 = 10;
    let (server, name) = (own_server(), fresh_name());
    let (proxy, operator) = (Proxy::start_zookeeper(server.endpoint()).unwrap(), plain(&server).await);
    for overtaken in [TRIES - 1, TRIES] {
        let session = session_at(&format!("{}&form=single", patient_url(&proxy)), LONG).await;
        let own = format!("/lockkit/:clients/{}", server.children("/lockkit/:clients").unwrap()[0]);
        let held = acquire(&session, &name).await;
        // It checks the version that the client wrote last. The operator writes one more each time, then the client.
        let deletion = |nth: i32| [own.as_bytes(), &(2 * nth).to_be_bytes()].concat();
        proxy.hold_requests_from(deletion(0));
        let overtake = async {
            for nth in 0..overtaken {
                until("the deletion is under way", async || proxy.holds_bytes(&deletion(nth))).await;
                operator.set_data(&own, b"", None).await.unwrap();
                proxy.hold_requests_from(deletion(nth + 1));
                proxy.set(Direction::Requests, Flow::Pass);
            }
            proxy.pass();
        };
        let (released, ()) = tokio::join!(bounded(session.release(&held)), overtake);
        match released {
            Ok(()) => assert!(overtaken < TRIES, "it is sent without end"),
            Err(error) => {
                assert!(overtaken == TRIES, "overtaken {overtaken} times: {error}");
                assert_error(&error, ErrorKind::Unavailable, "try again");
            }
        }
        bounded(session.close()).await.unwrap();
    }
}

/// What the leader's answer and the reads behind it prove does not depend on it.
#[tokio::test(flavor = "multi_thread")]
async fn holds_are_renewed_although_the_clients_own_node_cannot_be_made_again() {
    /// `ZooDefs.OpCode.create2`, and `KeeperException.Code.NOAUTH`.
    const CREATE: i32 = 15;
    const NO_AUTH: i32 = -102;
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&patient_url(&proxy), LONG).await;
    let held = acquire(&session, &fresh_name()).await;
    let own = server.children("/lockkit/:clients").unwrap().remove(0);
    assert!(server.delete(&format!("/lockkit/:clients/{own}")).unwrap());
    proxy.refuse_requests(CREATE, NO_AUTH, u64::MAX);
    let renewals = heartbeat(&session, &[&held]).await;
    assert!(is_renewed(&renewals.session) && is_renewed(&renewals.holds[0].1), "{renewals:?}");
    assert!(proxy.counts().dropped > 0, "it was not made again");
    release(&session, &held).await;
}

/// Where the lock is one node, a release reads that before it deletes.
#[tokio::test(flavor = "multi_thread")]
async fn release_of_a_single_node_that_is_deleted_meanwhile_is_confirmed() {
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&format!("{}&form=single", patient_url(&proxy)), LONG).await;
    let held = acquire(&session, &name).await;
    // A path, and "any version"; a read of that path ends otherwise.
    let deletion = [node(&name).as_bytes(), &(-1_i32).to_be_bytes()].concat();
    proxy.hold_requests_from(&deletion);
    let delete = async {
        until("the deletion is under way", async || proxy.holds_bytes(&deletion)).await;
        assert!(server.delete(&node(&name)).unwrap());
        proxy.pass();
    };
    let (released, ()) = tokio::join!(bounded(session.release(&held)), delete);
    released.unwrap();
}

/// The lock itself is no directory, so its parent is made again.
#[tokio::test(flavor = "multi_thread")]
async fn single_node_is_created_although_an_operator_has_deleted_its_directory() {
    let (server, name) = (own_server(), fresh_name());
    let session = session_at(&format!("{}/?form=single", server.url()), LONG).await;
    for place in server.tree("/lockkit").unwrap().into_iter().rev() {
        assert!(server.delete(&place).unwrap());
    }
    assert!(server.delete("/lockkit").unwrap());
    release(&session, &acquire(&session, &name).await).await;
}

/// The directory is made, and is missing again. Where names recur, each release needs the node.
#[tokio::test(flavor = "multi_thread")]
async fn session_whose_own_node_finds_no_directory_twice_is_not_opened() {
    /// `ZooDefs.OpCode.create2`, and `KeeperException.Code.NONODE`.
    const CREATE: i32 = 15;
    const NO_NODE: i32 = -101;
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    proxy.refuse_requests(CREATE, NO_NODE, u64::MAX);
    let error = refusal(&patient_url(&proxy)).await;
    assert_error(&error, ErrorKind::Unavailable, "an operator deletes the directory");
    assert_eq!(proxy.counts().dropped, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_delete_of_the_clients_own_node_is_harmless() {
    let server = own_server();
    let session = session(&server, LONG).await;
    for directory_too in [false, true] {
        let own = server.children("/lockkit/:clients").unwrap().remove(0);
        assert!(server.delete(&format!("/lockkit/:clients/{own}")).unwrap());
        if directory_too {
            assert!(server.delete("/lockkit/:clients").unwrap());
        }
        assert!(is_renewed(&heartbeat(&session, &[]).await.session));
        assert_eq!(server.children("/lockkit/:clients").unwrap(), [own]);
    }
}
