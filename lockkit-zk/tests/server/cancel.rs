//! Claims that are given up, at every position and moment.

use lockkit_testbed::{Direction, Flow, Proxy};

use crate::common::{
    BEFORE_A_RECHECK, LONG, acquire, bounded, cancel_during_handoff, enqueued, fresh_name, heartbeat,
    is_gave_up, mark, node, own_server, queue, release, session, session_at, shared, sooner_than, start,
    through_proxy, until, url_through, watching,
};

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiter_in_the_middle_does_not_delay_the_others() {
    let (server, name) = (shared(), fresh_name());
    let (one, other) = (session(server, LONG).await, session(server, LONG).await);
    let held = acquire(&one, &name).await;
    let second = enqueued(&other, &name).await;
    let third = enqueued(&one, &name).await;
    let fourth = enqueued(&other, &name).await;
    third.control.give_up();
    assert!(is_gave_up(&third.ends().await));
    assert_eq!(queue(server, &name).len(), 3);
    release(&one, &held).await;
    let second = second.granted().await;
    assert!(fourth.is_waiting());
    release(&other, &second).await;
    release(&other, &fourth.granted().await).await;
    assert_eq!(queue(server, &name), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiter_at_the_head_does_not_grant_the_next() {
    let (server, name) = (own_server(), fresh_name());
    let (one, other) = (session(&server, LONG).await, session(&server, LONG).await);
    let held = acquire(&one, &name).await;
    let second = watching(&server, &other, &name).await;
    let third = watching(&server, &one, &name).await;
    second.control.give_up();
    assert!(is_gave_up(&second.ends().await));
    // Its own watch is gone with it; the third watched its node, and watches the holder's next.
    until("the third watches the holder", async || server.watches().unwrap() == 1).await;
    assert!(third.is_waiting());
    release(&one, &held).await;
    release(&one, &third.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiter_leaves_before_its_next_recheck() {
    let server = own_server();
    for form in ["curator", "single"] {
        let session = session_at(&format!("{}/?form={form}", server.url()), LONG).await;
        sooner_than(BEFORE_A_RECHECK, async || {
            let name = fresh_name();
            let held = acquire(&session, &name).await;
            let waiting = watching(&server, &session, &name).await;
            // Its answer arrives after that of the watch.
            heartbeat(&session, &[&held]).await;
            waiting.control.give_up();
            assert!(is_gave_up(&waiting.ends().await), "{form}");
            release(&session, &held).await;
            until("no watch is left", async || server.watches().unwrap() == 0).await;
        })
        .await;
    }
}

/// At every request of an acquire: it was sent, and its answer is held back, when the claim is given up.
#[tokio::test(flavor = "multi_thread")]
async fn claim_given_up_at_any_request_leaves_nothing() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (other, name) = (session(&server, LONG).await, fresh_name());
    let held = acquire(&other, &name).await;
    let session = session_at(&url_through(&proxy), LONG).await;
    // Create, list, watch; then the claim waits.
    for stage in 0..4 {
        let claim = start(&session, &name);
        match stage {
            // Perhaps before the create was sent.
            0 => {}
            1 => until("it is created", async || queue(&server, &name).len() == 2).await,
            2 => until("it is contended", async || claim.control.was_contended()).await,
            _ => until("it watches", async || server.watches().unwrap() == 1).await,
        }
        claim.control.give_up();
        assert!(is_gave_up(&claim.ends().await), "stage {stage}");
        assert_eq!(queue(&server, &name).len(), 1, "stage {stage}");
        until("no watch is left", async || server.watches().unwrap() == 0).await;
    }
    // The same with late answers.
    for held_back in [true, false] {
        proxy.set(if held_back { Direction::Replies } else { Direction::Requests }, Flow::Hold);
        let claim = start(&session, &name);
        if held_back {
            until("it is created", async || queue(&server, &name).len() == 2).await;
        } else {
            until("the request is under way", async || proxy.holds(&mark(&claim.claim))).await;
        }
        claim.control.give_up();
        proxy.pass();
        assert!(is_gave_up(&claim.ends().await));
        assert_eq!(queue(&server, &name).len(), 1);
    }
    release(&other, &held).await;
}

/// Its node is the only one, so the list that came with the create would grant it.
#[tokio::test(flavor = "multi_thread")]
async fn claim_given_up_before_its_create_is_answered_is_not_granted() {
    let (server, name) = (shared(), fresh_name());
    let (proxy, session) = through_proxy(server).await;
    release(&session, &acquire(&session, &name).await).await;
    proxy.set(Direction::Replies, Flow::Hold);
    let claim = start(&session, &name);
    until("it is created", async || queue(server, &name).len() == 1).await;
    claim.control.give_up();
    proxy.pass();
    assert!(is_gave_up(&claim.ends().await));
    assert_eq!(queue(server, &name), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_given_up_before_it_starts_writes_nothing() {
    let server = own_server();
    let (session, name) = (session(&server, LONG).await, fresh_name());
    let control = lockkit_core::backend::ClaimControl::new();
    control.give_up();
    let claim = lockkit_core::backend::Claim::new(
        name.clone(),
        true,
        lockkit_core::Metadata::of_this_process(None),
        &control,
    );
    assert!(is_gave_up(&bounded(session.acquire(claim)).await));
    assert_eq!(server.children("/lockkit").unwrap(), [":clients"], "{}", node(&name));
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_right_at_the_wake_loses_no_grant() {
    const ROUNDS: usize = 100;
    let (server, name) = (shared(), fresh_name());
    let (one, other) = (session(server, LONG).await, session(server, LONG).await);
    let granted = cancel_during_handoff(&one, &other, &name, ROUNDS).await;
    println!("{granted} of {ROUNDS} were granted nonetheless");
    assert_eq!(queue(server, &name), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_waits_leave_no_watch_behind() {
    const WAITS: usize = 20;
    let server = own_server();
    let (session, name) = (session(&server, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITS {
        waiting.push(enqueued(&session, &name).await);
    }
    until("every waiter watches", async || server.watches().unwrap() == WAITS as u64).await;
    for waiter in &waiting {
        waiter.control.give_up();
    }
    for waiter in waiting {
        assert!(is_gave_up(&waiter.ends().await));
    }
    until("no watch is left", async || server.watches().unwrap() == 0).await;
    release(&session, &held).await;
}
