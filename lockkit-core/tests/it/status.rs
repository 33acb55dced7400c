//! The status of a client, from its first moment to its last.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Wake, Waker},
    time::Duration,
};

use crate::common::{NAME, TTL, client, in_time, settle};
use lockkit_core::{Clock, LockClient, Status, StatusWatch, memory::MemoryServer};

/// On several threads, where the caller runs while the session task is still busy.
#[tokio::test(crate = "crate::checked", flavor = "multi_thread", worker_threads = 4)]
async fn a_client_is_connected_as_soon_as_it_is_built() {
    const BUILDS: u32 = 3_000;
    let server = MemoryServer::new();
    for round in 0..BUILDS {
        let client = LockClient::builder(server.backend()).build().await.unwrap();
        assert_eq!(client.status().current(), Status::Connected, "in round {round}");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn closed_is_the_last_status_and_is_returned_once() {
    let client = client(&MemoryServer::new()).await;
    let mut followed = client.status();
    client.close().await.unwrap();
    let mut late = client.status();
    for watch in [&mut followed, &mut late] {
        assert_eq!(in_time(watch.changed()).await, Status::Closed);
        let again = tokio::time::timeout(Duration::from_secs(1), watch.changed()).await;
        assert!(again.is_err(), "a loop around it spins: {again:?}");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn remaining_time_of_a_silent_store_falls_until_the_loss() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock("held").unwrap().acquire().await.unwrap();
    let mut status = client.status();
    assert_eq!(status.remaining(), None, "the store answers");
    server.hold_requests();
    let suspect = in_time(status.changed()).await;
    assert!(matches!(suspect, Status::Suspect { .. }), "{suspect:?}");
    let left = status.remaining().unwrap();
    assert!(left < TTL / 2 && left + Duration::from_millis(10) >= guard.remaining(), "{left:?}");
    tokio::time::advance(left / 2).await;
    assert_eq!(status.remaining(), Some(left - left / 2));
    assert_eq!(in_time(status.changed()).await, Status::Lost);
    assert_eq!(status.remaining(), None);
    assert!(!guard.is_held());
}

/// What a client reports when this is woken first.
struct Reported(StatusWatch, OnceLock<Status>);

impl Wake for Reported {
    fn wake(self: Arc<Self>) {
        let _ = self.1.set(self.0.current());
    }
}

/// Returns what the client reports when the future, which must be pending now, is woken.
async fn status_when_woken<F: Future>(client: &LockClient, future: Pin<&mut F>) -> Option<Status> {
    let reported = Arc::new(Reported(client.status(), OnceLock::new()));
    let waker = Waker::from(Arc::clone(&reported));
    assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
    settle().await;
    reported.1.get().copied()
}

/// Whom the change wakes may run before the keeper continues.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn status_is_set_before_those_who_wait_for_the_change_are_woken() {
    let builder = LockClient::builder(MemoryServer::new().backend()).ttl(TTL).clock(Clock::tokio());
    let client = builder.build_lazy().await.unwrap();
    let election = client.election(NAME).unwrap();
    let reading = std::pin::pin!(election.leader());
    assert_eq!(status_when_woken(&client, reading).await, Some(Status::Connected));
    let closing = std::pin::pin!(client.close());
    assert_eq!(status_when_woken(&client, closing).await, Some(Status::Closed));
}
