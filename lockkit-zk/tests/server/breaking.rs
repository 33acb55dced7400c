//! Holds that an operator breaks: exactly the one that was inspected, whatever happens meanwhile.

use std::sync::Arc;

use lockkit_core::{
    ErrorKind, FencingToken, LockClient, LockName, Result,
    backend::{Backend, Contender, Grant, Renewal, Session},
    limits::TTL_DEFAULT,
};
use lockkit_testbed::{Proxy, ZooKeeper};
use tokio::task::{JoinHandle, JoinSet};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::common::{
    BEFORE_A_RECHECK, LONG, acquire, backend, bounded, contend, enqueued, fresh_name, heartbeat, inspect,
    is_renewed, node, own_server, patient_url, plain, queue, release, session, session_at, shared,
    sooner_than, until, url_through,
};

const QUEUES: [&str; 2] = ["curator", "bare"];

/// How many operators break the same hold.
const OPERATORS: usize = 8;

fn url(server: &ZooKeeper, form: &str) -> String {
    format!("{}/?form={form}", server.url())
}

async fn holder(server: &ZooKeeper, name: &LockName) -> Contender {
    inspect(&server.url(), name).await.holder.unwrap()
}

async fn break_lock(url: &str, name: &LockName, holder: &Contender) -> Result<bool> {
    bounded(backend(url).admin().unwrap().break_lock(name, holder)).await
}

/// Whether the next heartbeat finds the hold lost.
async fn is_lost(session: &Arc<dyn Session>, grant: &Grant) -> bool {
    let renewals = heartbeat(session, &[grant]).await;
    assert!(is_renewed(&renewals.session), "the other holds of the session go on");
    matches!(renewals.holds[0].1, Renewal::Gone)
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_hold_passes_to_the_next_waiter_by_its_watch() {
    let server = shared();
    for form in QUEUES {
        sooner_than(BEFORE_A_RECHECK, async || {
            let (stuck, other) = (session_at(&url(server, form), LONG).await, session(server, LONG).await);
            let (name, kept_name) = (fresh_name(), fresh_name());
            let (held, kept) = (acquire(&stuck, &name).await, acquire(&stuck, &kept_name).await);
            let (next, last) = (enqueued(&other, &name).await, enqueued(&other, &name).await);
            assert!(break_lock(&url(server, form), &name, &holder(server, &name).await).await.unwrap());
            let granted = next.granted().await;
            assert!(granted.token() > held.token(), "{form}");
            assert!(is_lost(&stuck, &held).await, "{form}");
            assert!(!is_lost(&stuck, &kept).await, "{form}: another hold of the session");
            assert!(last.is_waiting(), "{form}");
            // What the broken holder does late reaches nobody.
            release(&stuck, &held).await;
            assert!(!is_lost(&other, &granted).await, "{form}");
            release(&other, &granted).await;
            release(&other, &last.granted().await).await;
            release(&stuck, &kept).await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_leader_proclaims_and_records_nothing() {
    let (server, name) = (shared(), fresh_name());
    let (stuck, operator) = (session(server, LONG).await, server.url());
    let held = acquire(&stuck, &name).await;
    let records = stuck.records().unwrap();
    assert!(records.write(&held, "first", LONG).await.unwrap());
    assert!(break_lock(&operator, &name, &holder(server, &name).await).await.unwrap());
    assert!(!records.write(&held, "late", LONG).await.unwrap());
    assert_eq!(records.read(&name).await.unwrap().as_deref(), Some("first"));
    let elections = stuck.elections().unwrap();
    let metadata = lockkit_core::Metadata::of_this_process(None);
    assert!(!elections.proclaim(&held, &metadata).await.unwrap());
    assert_eq!(elections.leader(&name).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn guard_of_a_broken_hold_is_lost_within_a_heartbeat() {
    let (server, name) = (shared(), fresh_name());
    let client = LockClient::builder(backend(&server.url())).ttl(LONG / 4).build().await.unwrap();
    let operator = LockClient::builder(backend(&server.url())).build().await.unwrap();
    // A tenth of the ttl, and the time of the requests. The deadline would take the whole ttl.
    sooner_than(client.ttl() / 3, async || {
        let guard = client.lock(name.as_str()).unwrap().acquire().await.unwrap();
        let found = operator.inspect(name.as_str()).await.unwrap().holder.unwrap();
        assert!(operator.break_lock(name.as_str(), &found).await.unwrap());
        bounded(guard.lost()).await;
        assert!(!guard.is_held());
    })
    .await;
    operator.close().await.unwrap();
    client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_inspection_breaks_nobody() {
    let server = shared();
    for form in QUEUES {
        let (session, name) = (session_at(&url(server, form), LONG).await, fresh_name());
        let held = acquire(&session, &name).await;
        let stale = holder(server, &name).await;
        release(&session, &held).await;
        assert!(!break_lock(&server.url(), &name, &stale).await.unwrap(), "{form}: nobody holds it");
        let next = acquire(&session, &name).await;
        assert!(!break_lock(&server.url(), &name, &stale).await.unwrap(), "{form}");
        // An operator deletes the directory, and the numbers start again.
        release(&session, &next).await;
        assert!(server.delete(&node(&name)).unwrap());
        assert!(!break_lock(&server.url(), &name, &stale).await.unwrap(), "{form}: there is no directory");
        let next = acquire(&session, &name).await;
        assert_eq!(form == "bare", queue(server, &name)[0] == stale.entry, "{form}");
        assert!(!break_lock(&server.url(), &name, &stale).await.unwrap(), "{form}: a later node");
        assert!(!is_lost(&session, &next).await, "{form}");
        release(&session, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_is_not_broken() {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, LONG).await;
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    let mut waiter = inspect(&server.url(), &name).await.waiters.remove(0);
    assert!(!break_lock(&server.url(), &name, &waiter).await.unwrap());
    // The token that it would have as the holder.
    let path = format!("{}/{}", node(&name), waiter.entry);
    let stat = plain(server).await.check_stat(&path).await.unwrap().unwrap();
    waiter.token = Some(FencingToken::new(stat.czxid.unsigned_abs()));
    assert!(!break_lock(&server.url(), &name, &waiter).await.unwrap());
    assert_eq!(queue(server, &name).len(), 2);
    release(&session, &held).await;
    release(&session, &waiting.granted().await).await;
}

/// Starts to break a hold of a "bare" queue; the proxy holds the deletion.
async fn deletion_under_way(
    server: &ZooKeeper,
    name: &LockName,
    found: Contender,
) -> (Proxy, JoinHandle<Result<bool>>) {
    // The check of the directory's version, after its mark: only the transaction contains it.
    break_until(server, name, found, &format!("{}\0\0\0\u{1}", node(name))).await
}

/// Starts to break a hold; the proxy holds the request with this text, and all later ones.
async fn break_until(
    server: &ZooKeeper,
    name: &LockName,
    found: Contender,
    text: &str,
) -> (Proxy, JoinHandle<Result<bool>>) {
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    proxy.hold_requests_from(text);
    let (through, name) = (patient_url(&proxy), name.clone());
    let breaking = tokio::spawn(async move { break_lock(&through, &name, &found).await });
    until("the request is under way", async || proxy.holds(text)).await;
    (proxy, breaking)
}

/// The holder of the inspection releases, the directory is created again, and the next holder gets the same name: all
/// that between the operator's look at the node and its deletion.
#[tokio::test(flavor = "multi_thread")]
async fn deletion_under_way_does_not_hit_a_later_node_of_the_same_name() {
    let server = shared();
    let (session, name) = (session_at(&url(server, "bare"), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let found = holder(server, &name).await;
    let (proxy, breaking) = deletion_under_way(server, &name, found.clone()).await;
    release(&session, &held).await;
    assert!(server.delete(&node(&name)).unwrap());
    let next = acquire(&session, &name).await;
    assert_eq!(queue(server, &name), [found.entry.as_str()], "the name did not recur");
    proxy.pass();
    assert!(!bounded(breaking).await.unwrap().unwrap());
    assert!(!is_lost(&session, &next).await, "the next holder was broken");
    release(&session, &next).await;
}

/// Its node is gone when the deletion arrives, as when another operator has broken it.
#[tokio::test(flavor = "multi_thread")]
async fn hold_that_is_released_during_its_break_is_not_broken() {
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session(server, LONG).await;
    let held = acquire(&session, &name).await;
    let found = holder(server, &name).await;
    // A path, and "any version"; the look at that node ends otherwise.
    let path = format!("{}/{}", node(&name), found.entry);
    let deletion = [path.as_bytes(), &(-1_i32).to_be_bytes()].concat();
    proxy.hold_requests_from(&deletion);
    let releasing = async {
        until("the deletion is under way", async || proxy.holds_bytes(&deletion)).await;
        release(&session, &held).await;
        proxy.pass();
    };
    let through = patient_url(&proxy);
    let (broken, ()) = tokio::join!(break_lock(&through, &name, &found), releasing);
    assert!(!broken.unwrap());
}

/// Somebody else writes the directory, which may also be another operator who marks it.
#[tokio::test(flavor = "multi_thread")]
async fn hold_is_broken_although_its_directory_is_written_meanwhile() {
    let server = shared();
    let (session, name) = (session_at(&url(server, "bare"), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let (proxy, breaking) = deletion_under_way(server, &name, holder(server, &name).await).await;
    server.write(&node(&name), b"").unwrap();
    proxy.pass();
    assert!(bounded(breaking).await.unwrap().unwrap());
    assert!(is_lost(&session, &held).await);
}

/// The mark writes what was read before, which another program has replaced meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn mark_of_a_break_undoes_no_write_of_the_directory() {
    let server = shared();
    let (session, name) = (session_at(&url(server, "bare"), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    server.write(&node(&name), b"of another program").unwrap();
    let found = holder(server, &name).await;
    let (proxy, breaking) = break_until(server, &name, found, "of another program").await;
    server.write(&node(&name), b"newer").unwrap();
    proxy.pass();
    assert!(bounded(breaking).await.unwrap().unwrap());
    let (data, _) = plain(server).await.get_data(&node(&name)).await.unwrap();
    assert_eq!(data, b"newer");
    assert!(is_lost(&session, &held).await);
}

/// The mark arrives at a new directory whose data have the same version, and the next holder's node has the same name.
#[tokio::test(flavor = "multi_thread")]
async fn break_looks_for_the_holders_node_behind_its_mark() {
    let server = shared();
    let (session, name) = (session_at(&url(server, "bare"), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    server.write(&node(&name), b"of another program").unwrap();
    let found = holder(server, &name).await;
    let (proxy, breaking) = break_until(server, &name, found.clone(), "of another program").await;
    release(&session, &held).await;
    assert!(server.delete(&node(&name)).unwrap());
    let next = acquire(&session, &name).await;
    server.write(&node(&name), b"newer").unwrap();
    assert_eq!(queue(server, &name), [found.entry.as_str()], "the name did not recur");
    proxy.pass();
    assert!(!bounded(breaking).await.unwrap().unwrap());
    assert!(!is_lost(&session, &next).await, "the next holder was broken");
    release(&session, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn break_with_lost_reply_is_repeated_and_breaks_nobody_else() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in QUEUES {
        let (stuck, other, name) =
            (session_at(&url(server, form), LONG).await, session(server, LONG).await, fresh_name());
        let held = acquire(&stuck, &name).await;
        let next = enqueued(&other, &name).await;
        let found = holder(server, &name).await;
        // After the list and the metadata; a name that may recur needs two more, to mark the directory.
        proxy.swallow_reply(if form == "curator" { 3 } else { 5 });
        let error = break_lock(&url_through(&proxy), &name, &found).await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)), "{form}: {error}");
        let granted = next.granted().await;
        assert!(!break_lock(&url_through(&proxy), &name, &found).await.unwrap(), "{form}");
        assert!(is_lost(&stuck, &held).await && !is_lost(&other, &granted).await, "{form}");
        release(&other, &granted).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_operators_breaks_a_hold() {
    let server = shared();
    for form in QUEUES {
        let (stuck, other, name) =
            (session_at(&url(server, form), LONG).await, session(server, LONG).await, fresh_name());
        acquire(&stuck, &name).await;
        let next = enqueued(&other, &name).await;
        let (found, url) = (holder(server, &name).await, server.url());
        let mut breaks = JoinSet::new();
        for _ in 0..OPERATORS {
            let (url, name, found) = (url.clone(), name.clone(), found.clone());
            breaks.spawn(async move { break_lock(&url, &name, &found).await.unwrap() });
        }
        let broken = breaks.join_all().await.into_iter().map(usize::from);
        assert_eq!(broken.sum::<usize>(), 1, "{form}");
        let granted = next.granted().await;
        assert!(!is_lost(&other, &granted).await, "{form}");
        release(&other, &granted).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_of_another_program_is_broken() {
    let server = shared();
    let (theirs, ours) = (plain(server).await, session(server, LONG).await);
    for family in ["_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-lock-", "0a1b2c3d__lock__", "lock-"] {
        let name = fresh_name();
        contend(&theirs, &name, family).await;
        let waiting = enqueued(&ours, &name).await;
        let found = holder(server, &name).await;
        assert!(found.metadata.is_none() && found.entry.starts_with(family), "{found:?}");
        assert!(break_lock(&server.url(), &name, &found).await.unwrap(), "{family}");
        release(&ours, &waiting.granted().await).await;
    }
}

/// It ends with no session, so only an operator can end its hold.
#[tokio::test(flavor = "multi_thread")]
async fn persistent_node_that_holds_a_lock_is_broken() {
    let (server, name) = (shared(), fresh_name());
    let ours = session(server, LONG).await;
    // Its number is lower than that of the next node.
    release(&ours, &acquire(&ours, &name).await).await;
    server.create(&format!("{}/lock-0000000000", node(&name)), "").unwrap();
    let waiting = enqueued(&ours, &name).await;
    let found = holder(server, &name).await;
    assert_eq!((found.entry.as_str(), found.session.as_deref()), ("lock-0000000000", None));
    assert!(break_lock(&server.url(), &name, &found).await.unwrap());
    release(&ours, &waiting.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_that_is_one_node_is_not_broken() {
    let (server, name) = (shared(), fresh_name());
    let session = session_at(&url(server, "single"), LONG).await;
    assert!(!backend(&url(server, "single")).info().powers.break_lock);
    let held = acquire(&session, &name).await;
    let found = holder(server, &name).await;
    for form in ["single", "curator", "bare"] {
        let error = break_lock(&url(server, form), &name, &found).await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Unsupported, Some(&name)), "{form}: {error}");
        assert!(error.to_string().contains("end the holder's process"), "{error}");
    }
    assert!(!is_lost(&session, &held).await);
    let stat = plain(server).await.check_stat(&node(&name)).await.unwrap().unwrap();
    assert_eq!(stat.version, 0, "the holder's node was written");
    release(&session, &held).await;
    for form in QUEUES {
        assert!(backend(&url(server, form)).info().powers.break_lock, "{form}");
        assert!(!break_lock(&url(server, form), &name, &found).await.unwrap(), "{form}: it was released");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn break_without_permission_is_denied_and_changes_nothing() {
    let (server, name) = (own_server(), fresh_name());
    let acl = [Acl::new(Permission::CREATE | Permission::READ, AuthId::anyone())];
    let options = CreateMode::Persistent.with_acls(Acls::new(&acl));
    let client = plain(&server).await;
    client.mkdir("/lockkit", &CreateMode::Container.with_acls(Acls::anyone_all())).await.unwrap();
    client.create(&node(&name), b"", &options).await.unwrap();
    let session = session(&server, LONG).await;
    let held = acquire(&session, &name).await;
    let found = holder(&server, &name).await;
    let error = break_lock(&server.url(), &name, &found).await.unwrap_err();
    // Not only after its ttl. Two others stay. (A count before this call could miss one that is just renewed.)
    let closed = until("its session is closed", async || server.sessions().unwrap() == 2);
    tokio::time::timeout(TTL_DEFAULT / 2, closed).await.unwrap();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    assert!(!is_lost(&session, &held).await);
}
