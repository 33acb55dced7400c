//! A machine that sleeps: the clock moves on, and no timer does.

use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use lockkit_core::backend::Backend;
use lockkit_testbed::Proxy;
use tokio::time::timeout;

use crate::common::{
    LONG, backend, bounded, fresh_name, granted, is_entry_gone, mark, node, own_server, queue, release,
    session, shared, shifted_clock, start, try_acquire, until, url_through,
};

/// The list with which a claim is granted may be as old as the lease.
#[tokio::test(flavor = "multi_thread")]
async fn grant_on_an_old_lease_is_confirmed_by_the_leader() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let ((clock, ahead), name) = (shifted_clock(), fresh_name());
    let session = backend(&url_through(&proxy)).open_session(LONG, clock).await.unwrap();
    release(&session, &granted(try_acquire(&session, &name).await)).await;
    // A little less than half of it is left.
    ahead.store(LONG.as_secs() * 3 / 5, SeqCst);
    for is_deleted in [false, true] {
        // Without its number, the claim's mark would also be found in the create.
        let number = if is_deleted { 2 } else { 1 };
        proxy.hold_requests_from(format!("-lock-{number:010}"));
        let claim = start(&session, &name);
        let check = format!("{}/_c_{}-lock-{number:010}", node(&name), mark(&claim.claim));
        until("the leader is asked for the node", async || proxy.holds(&check)).await;
        assert!(claim.is_waiting(), "granted by the list alone");
        if is_deleted {
            assert!(server.delete(&format!("{}/{}", node(&name), queue(server, &name).remove(0))).unwrap());
        }
        proxy.pass();
        let end = claim.ends().await;
        match is_deleted {
            true => assert!(is_entry_gone(&end), "{end:?}"),
            false => release(&session, &granted(end)).await,
        }
    }
}

/// Its holders no longer rely on it, and the client crate would keep it alive by pings.
#[tokio::test(flavor = "multi_thread")]
async fn session_of_a_machine_that_slept_past_its_lease_is_ended_at_the_server() {
    let (server, (clock, ahead)) = (own_server(), shifted_clock());
    let session = backend(&server.url()).open_session(LONG, clock).await.unwrap();
    assert_eq!(server.ephemerals().unwrap().len(), 1);
    ahead.store(LONG.as_secs() + 1, SeqCst);
    // The clock is read once a second.
    let soon: Duration = LONG / 8;
    timeout(soon, session.lost()).await.expect("no timer of the length of the lease has passed");
    until("the server has ended the session", async || server.ephemerals().unwrap().is_empty()).await;
}

/// The clock is read once a second; a close does not wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn close_is_sent_at_once() {
    const ROUNDS_MAX: usize = 10;
    let mut took = Vec::new();
    while took.last().is_none_or(|took| *took > Duration::from_secs(1)) {
        assert!(took.len() < ROUNDS_MAX, "{took:?}");
        // The first check is a second after the open.
        let opening = Instant::now();
        bounded(session(shared(), LONG).await.close()).await.unwrap();
        took.push(opening.elapsed());
    }
}
