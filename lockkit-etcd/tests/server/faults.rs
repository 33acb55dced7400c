//! Servers that restart, freeze or are unreachable; operators who delete keys and revoke leases; clients that die.

use std::time::Duration;

use lockkit_core::{
    Clock, ErrorKind,
    backend::{Acquired, Backend, Loss, Renewal},
};
use lockkit_testbed::{Direction, Etcd, Flow};
use tokio::time::Instant;

use crate::common::{
    LONG, LONGEST, acquire, backend, bounded, enqueued, fresh_name, granted, is_entry_gone, is_gave_up,
    is_renewed, key_of, lease_of_only_session, own_server, plain, queue, release, session, session_at,
    sooner_than, start, start_with_proxy, try_acquire, until,
};

/// A short ttl for the test that waits for the end of a lease.
const SHORT: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn holder_and_waiter_survive_a_restart_of_the_server() {
    let mut etcd = Etcd::start().unwrap();
    let (one, other, name) = (session(&etcd, LONG).await, session(&etcd, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    etcd.kill().unwrap();
    let late = start(&other, &fresh_name());
    assert!(matches!(bounded(one.renew(std::slice::from_ref(&held))).await.session, Renewal::Unknown(_)));
    etcd.restart().unwrap();
    let heartbeat = bounded(one.renew(std::slice::from_ref(&held))).await;
    assert!(matches!(heartbeat.session, Renewal::Renewed { .. }), "{heartbeat:?}");
    assert!(matches!(heartbeat.holds[..], [(_, Renewal::Renewed { .. })]), "{heartbeat:?}");
    assert!(waiting.is_waiting());
    let late = late.granted().await;
    release(&one, &held).await;
    let grant = waiting.granted().await;
    assert!(grant.token() > held.token());
    release(&other, &grant).await;
    release(&other, &late).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_lease_ends_the_session_at_once() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    plain(&etcd).await.lease_revoke(lease_of_only_session(&etcd)).await.unwrap();
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    assert!(is_entry_gone(&waiting.ends().await));
    let heartbeat = bounded(session.renew(&[held])).await;
    assert!(matches!(heartbeat.session, Renewal::Gone), "{heartbeat:?}");
    assert!(matches!(heartbeat.holds[..], [(_, Renewal::Gone)]), "{heartbeat:?}");
    bounded(session.close()).await.unwrap();
}

/// A claim reuses a key. In the backup that an operator restores, the key is that of an earlier claim, which waits.
#[tokio::test(flavor = "multi_thread")]
async fn earlier_claim_in_a_restored_backup_is_not_taken_for_the_hold() {
    let mut etcd = Etcd::start().unwrap();
    let url = format!("{}/?request_timeout=10s", etcd.url());
    let (session, other) = (session_at(&url, LONGEST).await, session_at(&url, LONGEST).await);
    let (name, kept_name) = (fresh_name(), fresh_name());
    let kept = acquire(&session, &kept_name).await;
    let first = acquire(&other, &name).await;
    let waiting = enqueued(&session, &name).await;
    etcd.back_up().unwrap();
    release(&other, &first).await;
    release(&session, &waiting.granted().await).await;
    let held = acquire(&session, &name).await;
    let renewals = async || bounded(session.renew(&[held.clone(), kept.clone()])).await.holds;
    assert!(renewals().await.iter().all(|(_, renewal)| is_renewed(renewal)));
    let keys = etcd.keys(&queue(&name)).unwrap();
    etcd.restore().unwrap();
    let restored = etcd.keys(&queue(&name)).unwrap();
    assert!(restored.len() == 2 && restored.contains(&keys[0]), "{keys:?}, restored {restored:?}");
    for (claim, renewal) in renewals().await {
        let is_expected =
            if claim == held.claim() { matches!(renewal, Renewal::Gone) } else { is_renewed(&renewal) };
        assert!(is_expected, "{claim:?} {renewal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_epoch_key_ends_the_session() {
    let etcd = own_server();
    let session = session(&etcd, LONG).await;
    let epoch =
        etcd.keys("lockkit/:clients/").unwrap().into_iter().find(|key| key.ends_with("epoch")).unwrap();
    etcd.delete(&epoch).unwrap();
    assert_eq!(bounded(session.lost()).await, Loss::Session);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_finds_a_lease_that_ended_unnoticed() {
    let (etcd, proxy, session) = start_with_proxy().await;
    proxy.refuse();
    plain(&etcd).await.lease_revoke(lease_of_only_session(&etcd)).await.unwrap();
    assert!(matches!(bounded(session.renew(&[])).await.session, Renewal::Unknown(_)));
    proxy.pass();
    until("the heartbeat reports it", async || {
        matches!(bounded(session.renew(&[])).await.session, Renewal::Gone)
    })
    .await;
    assert_eq!(bounded(session.lost()).await, Loss::Session);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_holder_key_ends_only_that_hold() {
    let etcd = own_server();
    let (session, name, kept_name) = (session(&etcd, LONG).await, fresh_name(), fresh_name());
    let deleted = acquire(&session, &name).await;
    let kept = acquire(&session, &kept_name).await;
    assert!(etcd.delete(&etcd.keys(&queue(&name)).unwrap()[0]).unwrap());
    let heartbeat = bounded(session.renew(&[deleted.clone(), kept.clone()])).await;
    assert!(matches!(heartbeat.session, Renewal::Renewed { .. }), "{heartbeat:?}");
    for (id, renewal) in heartbeat.holds {
        assert_eq!(matches!(renewal, Renewal::Gone), id == deleted.claim(), "{renewal:?}");
    }
    let next = acquire(&session, &name).await;
    release(&session, &deleted).await;
    assert_eq!(etcd.keys(&queue(&name)).unwrap().len(), 1, "the newer grant is still there");
    release(&session, &next).await;
    release(&session, &kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_waiter_key_ends_its_wait() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONGEST).await, fresh_name());
    let held = acquire(&session, &name).await;
    let deleted = enqueued(&session, &name).await;
    let behind = enqueued(&session, &name).await;
    assert!(etcd.delete(&key_of(&etcd, &deleted.claim)).unwrap());
    assert!(is_entry_gone(&deleted.ends().await));
    release(&session, &held).await;
    release(&session, &behind.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_of_a_dead_client_passes_on_when_its_lease_ends() {
    /// A busy machine may delay some of them.
    const TRIES: usize = 3;
    /// What the documents allow for the end of a lease, and a second for a busy machine.
    const LATE_MAX: Duration = Duration::from_secs(2);
    let etcd = own_server();
    let mut waited = Vec::new();
    while waited.len() < TRIES && waited.iter().all(|waited| *waited > SHORT + LATE_MAX) {
        let name = fresh_name();
        let (dead, alive) = (session(&etcd, SHORT).await, session(&etcd, LONG).await);
        let _held = acquire(&dead, &name).await;
        let _also_dead = enqueued(&dead, &name).await;
        let waiting = enqueued(&alive, &name).await;
        let start = Instant::now();
        // The lease expires; one revision deletes the keys of the holder and the waiter.
        let granted = waiting.granted().await;
        waited.push(start.elapsed());
        release(&alive, &granted).await;
        assert_eq!(bounded(dead.lost()).await, Loss::Session);
    }
    assert!(waited.iter().any(|waited| *waited <= SHORT + LATE_MAX), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_frozen_server_end_in_time() {
    let etcd = own_server();
    let url = format!("{}/?request_timeout=1500ms", etcd.url());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    etcd.pause().unwrap();
    let heartbeat = bounded(session.renew(std::slice::from_ref(&held))).await;
    assert!(matches!(heartbeat.session, Renewal::Unknown(_)), "{heartbeat:?}");
    assert!(matches!(heartbeat.holds[..], [(_, Renewal::Unknown(_))]), "{heartbeat:?}");
    let error = bounded(session.release(&held)).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)));
    let pending = start(&session, &fresh_name());
    let error = bounded(session.close()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for claim in [waiting, pending] {
        assert_eq!(claim.ends().await.unwrap_err().kind(), ErrorKind::Closed);
    }
    etcd.resume().unwrap();
    until("the close is confirmed", async || bounded(session.close()).await.is_ok()).await;
    until("nothing is left", async || etcd.keys("").unwrap().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_ping_reply_does_not_count_for_the_next_ping() {
    let etcd = own_server();
    // Short for the ping to the frozen server, and long enough for the others on a busy machine.
    let url = format!("{}/?request_timeout=5s", etcd.url());
    let session = session_at(&url, LONG).await;
    let armed_at = |heartbeat: lockkit_core::backend::Renewals| match heartbeat.session {
        Renewal::Renewed { armed_at } => armed_at,
        other => panic!("{other:?}"),
    };
    let clock = Clock::boot();
    let first = armed_at(bounded(session.renew(&[])).await);
    etcd.pause().unwrap();
    assert!(matches!(bounded(session.renew(&[])).await.session, Renewal::Unknown(_)));
    etcd.resume().unwrap();
    // The server answers the old ping now; only the new ping may start a lifetime.
    let sent = clock.now();
    let second = armed_at(bounded(session.renew(&[])).await);
    assert!(second >= sent && second > first);
}

/// Returns the bytes of a number in a request.
fn varint(number: i64) -> Vec<u8> {
    let (mut rest, mut bytes) = (number.cast_unsigned(), Vec::new());
    while rest > 0x7f {
        bytes.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push((rest & 0x7f) as u8);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_lifetime_starts_when_the_ping_is_sent() {
    let (etcd, proxy, session) = start_with_proxy().await;
    let (lease, clock) = (varint(lease_of_only_session(&etcd)), Clock::boot());
    // First on a new stream, then on an open one.
    for _ in 0..2 {
        proxy.set(Direction::Requests, Flow::Hold);
        let renewing = tokio::spawn({
            let session = session.clone();
            async move { session.renew(&[]).await }
        });
        until("the ping is sent", async || proxy.holds_bytes(&lease)).await;
        let still_held = clock.now();
        proxy.pass();
        match bounded(renewing).await.unwrap().session {
            Renewal::Renewed { armed_at } => assert!(armed_at <= still_held),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_unavailable() {
    for endpoint in ["127.0.0.1:1", "no-such-host.invalid:2379"] {
        let backend = backend(&format!("etcd://{endpoint}"));
        let error = bounded(backend.open_session(LONG, Clock::boot())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = bounded(backend.admin().unwrap().inspect(&fresh_name())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_endpoint_of_several_is_enough() {
    let mut etcd = Etcd::start().unwrap();
    for login in ["", "app:hunter2@"] {
        if !login.is_empty() {
            etcd.enable_auth("app", "hunter2").unwrap();
        }
        let url = format!("etcd://{login}127.0.0.1:1,{},127.0.0.1:2", etcd.endpoint());
        let (session, name) = (session_at(&url, LONG).await, fresh_name());
        for _ in 0..50 {
            let grant = acquire(&session, &name).await;
            assert!(matches!(bounded(session.renew(&[])).await.session, Renewal::Renewed { .. }));
            release(&session, &grant).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_works_and_survives_a_restart_that_forgets_it() {
    let mut etcd = Etcd::start().unwrap();
    etcd.enable_auth("app", "hunter2").unwrap();
    let session = session_at(&format!("etcd://app:hunter2@{}", etcd.endpoint()), LONG).await;
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    assert!(matches!(
        bounded(session.renew(std::slice::from_ref(&held))).await.holds[..],
        [(_, Renewal::Renewed { .. })]
    ));
    // The server keeps its login tokens in memory.
    etcd.restart().unwrap();
    release(&session, &held).await;
    release(&session, &waiting.granted().await).await;
    assert!(matches!(bounded(session.renew(&[])).await.session, Renewal::Renewed { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_and_missing_passwords_are_denied_without_being_shown() {
    async fn open(etcd: &Etcd, login: &str) -> ErrorKind {
        let backend = backend(&format!("etcd://{login}{}", etcd.endpoint()));
        let error = bounded(backend.open_session(LONG, Clock::boot())).await.unwrap_err();
        let text = format!("{error} {error:?} {backend:?}");
        assert!(!text.contains("hunter") && !text.contains("sesame"), "{text}");
        error.kind()
    }
    let mut etcd = Etcd::start().unwrap();
    assert_eq!(
        open(&etcd, "app:hunter2@").await,
        ErrorKind::InvalidConfig,
        "authentication is not enabled yet"
    );
    etcd.enable_auth("app", "hunter2").unwrap();
    assert_eq!(open(&etcd, "app:sesame@").await, ErrorKind::Denied);
    assert_eq!(open(&etcd, "nobody:hunter2@").await, ErrorKind::Denied);
    assert_eq!(open(&etcd, "").await, ErrorKind::Denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_session_grants_nothing() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    bounded(session.close()).await.unwrap();
    let end = start(&session, &name).ends().await;
    assert!(!matches!(end, Ok(Acquired::Granted(_))), "{end:?}");
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_server_still_releases_and_renews() {
    let etcd = own_server();
    let (one, other, name) = (session(&etcd, LONG).await, session(&etcd, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    let given_up = enqueued(&one, &name).await;
    etcd.set_no_space(true).unwrap();
    let error = start(&one, &fresh_name()).ends().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("space exceeded"), "{error}");
    let heartbeat = bounded(one.renew(std::slice::from_ref(&held))).await;
    assert!(matches!(heartbeat.holds[..], [(_, Renewal::Renewed { .. })]), "{heartbeat:?}");
    given_up.control.give_up();
    assert!(is_gave_up(&given_up.ends().await));
    release(&one, &held).await;
    release(&other, &waiting.granted().await).await;
    assert_eq!(etcd.keys(&queue(&name)).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn try_fails_while_the_server_is_down_and_succeeds_after_its_restart() {
    let mut etcd = Etcd::start().unwrap();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    etcd.kill().unwrap();
    // The heartbeat notices that the connection is broken, so that the try is not sent.
    assert!(matches!(bounded(session.renew(&[])).await.session, Renewal::Unknown(_)));
    assert_eq!(try_acquire(&session, &name).await.unwrap_err().kind(), ErrorKind::Unavailable);
    etcd.restart().unwrap();
    let grant = granted(try_acquire(&session, &name).await);
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_reopens_a_broken_stream() {
    let mut etcd = Etcd::start().unwrap();
    let session = session(&etcd, LONG).await;
    assert!(is_renewed(&bounded(session.renew(&[])).await.session));
    etcd.restart().unwrap();
    let heartbeat = bounded(session.renew(&[])).await;
    assert!(is_renewed(&heartbeat.session), "{heartbeat:?}");
}

/// The limit is much shorter than the time until HTTP/2 pings detect a dead connection.
#[tokio::test(flavor = "multi_thread")]
async fn request_ends_at_its_time_limit() {
    let etcd = own_server();
    let url = format!("{}/?request_timeout=1500ms", etcd.url());
    let session = session_at(&url, LONGEST).await;
    let held = acquire(&session, &fresh_name()).await;
    etcd.pause().unwrap();
    sooner_than(Duration::from_secs(4), async || {
        assert_eq!(bounded(session.release(&held)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    })
    .await;
    etcd.resume().unwrap();
}
