//! Who is granted the lock, in which order, and with which token.

use lockkit_core::{
    ErrorKind, Fence,
    backend::{Backend, Renewal},
};
use lockkit_testbed::{Direction, Flow, Proxy, ZooKeeper};

use crate::{
    budget::spent,
    common::{
        LONG, acquire, assert_rising, backend, bounded, enqueued, fresh_name, granted, heartbeat,
        held_create_and_list, is_gave_up, is_renewed, name, node, own_server, patient_url, queue, release,
        session, session_at, shared, start, start_claim, try_acquire, until,
    },
};

const FORMS: [&str; 3] = ["curator", "bare", "single"];

#[tokio::test(flavor = "multi_thread")]
async fn lock_has_one_holder_in_every_form() {
    for form in FORMS {
        let name = fresh_name();
        let url = format!("{}/?form={form}", shared().url());
        let (one, other) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let held = acquire(&one, &name).await;
            assert!(is_gave_up(&try_acquire(&other, &name).await), "{form}");
            let waiting = enqueued(&other, &name).await;
            release(&one, &held).await;
            let second = waiting.granted().await;
            assert!(is_gave_up(&try_acquire(&one, &name).await), "{form}");
            release(&other, &second).await;
            tokens.extend([held.token(), second.token()]);
        }
        assert_rising(&tokens);
    }
}

/// As if the operator had deleted it just after the grant. The list was right when the server answered it.
#[tokio::test(flavor = "multi_thread")]
async fn node_deleted_while_the_first_list_is_on_its_way_is_lost_with_the_next_heartbeat() {
    let (server, name) = (own_server(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&patient_url(&proxy), LONG).await;
    let claim = held_create_and_list(&proxy, &session, &name).await;
    let logged = server.log_bytes().unwrap();
    let answered = spent(&server, async || {
        proxy.set(Direction::Replies, Flow::Hold);
        proxy.set(Direction::Requests, Flow::Pass);
        until("the create is executed", async || server.log_bytes().unwrap() > logged).await;
    })
    .await;
    assert_eq!(answered, (2, 2));
    let node = format!("{}/{}", node(&name), queue(&server, &name).remove(0));
    assert!(server.delete(&node).unwrap());
    proxy.pass();
    let held = claim.granted().await;
    let heartbeat = heartbeat(&session, &[&held]).await;
    assert!(
        is_renewed(&heartbeat.session) && matches!(heartbeat.holds[..], [(_, Renewal::Gone)]),
        "{heartbeat:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_in_the_order_in_which_they_came() {
    let (server, name) = (shared(), fresh_name());
    let sessions = [session(server, LONG).await, session(server, LONG).await, session(server, LONG).await];
    let mut held = acquire(&sessions[0], &name).await;
    let mut holder = &sessions[0];
    let mut waiting = Vec::new();
    for round in 0..12 {
        let session = &sessions[round % 3];
        waiting.push((session, enqueued(session, &name).await));
    }
    let fence = Fence::default();
    for (session, next) in waiting {
        assert!(next.is_waiting());
        release(holder, &held).await;
        held = next.granted().await;
        holder = session;
        assert!(fence.admit(held.token()));
    }
    release(holder, &held).await;
    assert_eq!(queue(server, &name), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_different_ordered_forms_share_a_queue() {
    let (server, name) = (shared(), fresh_name());
    let curator = session(server, LONG).await;
    let bare = session_at(&format!("{}/?form=bare", server.url()), LONG).await;
    let first = acquire(&bare, &name).await;
    let second = enqueued(&curator, &name).await;
    let third = enqueued(&bare, &name).await;
    release(&bare, &first).await;
    let second = second.granted().await;
    assert!(third.is_waiting());
    release(&curator, &second).await;
    release(&bare, &third.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_when_the_directory_is_created_again() {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, LONG).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let grant = acquire(&session, &name).await;
        assert!(queue(server, &name)[0].ends_with("-lock-0000000000"));
        tokens.push(grant.token());
        release(&session, &grant).await;
        assert!(server.delete(&node(&name)).unwrap());
    }
    assert_rising(&tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn try_of_a_name_without_a_directory_is_granted() {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, LONG).await;
    for _ in 0..2 {
        release(&session, &granted(try_acquire(&session, &name).await)).await;
        assert!(server.delete(&node(&name)).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_without_numbers_is_refused_until_created_again() {
    let server = ZooKeeper::start_numbered("/lockkit/x", i32::MAX - (1 << 16)).unwrap();
    let (session, name) = (session(&server, LONG).await, name("x"));
    let last = acquire(&session, &name).await;
    for wait in [true, false] {
        let error = start_claim(&session, &name, wait).ends().await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)), "{error}");
        assert_eq!(queue(&server, &name).len(), 1, "a refused claim has left a node");
    }
    release(&session, &last).await;
    assert!(server.delete(&node(&name)).unwrap());
    let first = acquire(&session, &name).await;
    assert!(first.token() > last.token());
    release(&session, &first).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_are_different_locks() {
    let session = session(shared(), LONG).await;
    let long = "x".repeat(1024);
    let odd =
        ["a", "a/b", ".", "..", "zookeeper", "ends-in-dash-", "lock-0000000001", "\u{0}\n", "🔒%", &long];
    let mut held = Vec::new();
    for text in odd {
        held.push(acquire(&session, &name(text)).await);
    }
    for (grant, text) in held.iter().zip(odd) {
        assert!(is_gave_up(&try_acquire(&session, &name(text)).await), "{text:?}");
        release(&session, grant).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inspection_shows_holder_and_waiters_in_order() {
    for form in FORMS {
        let name = fresh_name();
        let url = format!("{}/?form={form}", shared().url());
        let (session, backend) = (session_at(&url, LONG).await, backend(&url));
        let inspect = async || bounded(backend.admin().unwrap().inspect(&name)).await.unwrap();
        assert_eq!(inspect().await.holder, None);
        let held = acquire(&session, &name).await;
        let waiting = [enqueued(&session, &name).await, enqueued(&session, &name).await];
        let seen = inspect().await;
        let holder = seen.holder.unwrap();
        assert_eq!(holder.token, Some(held.token()), "{form}");
        assert_eq!(holder.metadata.unwrap().label.as_deref(), Some("test"));
        if form != "single" {
            let entries: Vec<&str> = seen.waiters.iter().map(|waiter| &*waiter.entry).collect();
            assert_eq!(entries, queue_in_order(&name)[1..]);
            assert!(seen.waiters.iter().all(|waiter| waiter.token.is_none()));
        }
        release(&session, &held).await;
        for waiting in waiting {
            waiting.control.give_up();
            if let Ok(lockkit_core::backend::Acquired::Granted(grant)) = waiting.ends().await {
                release(&session, &grant).await;
            }
        }
    }
}

/// Returns the queue by its numbers, which are all positive here.
fn queue_in_order(name: &lockkit_core::LockName) -> Vec<String> {
    let mut queue = queue(shared(), name);
    queue.sort_by_key(|child| child[child.len() - 10..].to_owned());
    queue
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_exclude_each_other() {
    const ROUNDS: usize = 20;
    let (server, name) = (shared(), fresh_name());
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut clients = Vec::new();
    for _ in 0..6 {
        let (session, name, inside) = (session(server, LONG).await, name.clone(), inside.clone());
        clients.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..ROUNDS {
                let grant = start(&session, &name).granted().await;
                assert!(!inside.swap(true, std::sync::atomic::Ordering::SeqCst), "two holders");
                tokio::task::yield_now().await;
                tokens.push(grant.token());
                inside.store(false, std::sync::atomic::Ordering::SeqCst);
                release(&session, &grant).await;
            }
            tokens
        }));
    }
    for client in clients {
        assert_rising(&bounded(client).await.unwrap());
    }
    assert_eq!(queue(server, &name), [""; 0]);
}
