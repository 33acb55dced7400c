//! What an operator sees and lists, in every form of the locks.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use etcd_client::{LockOptions, PutOptions};
use lockkit_core::{
    ErrorKind,
    backend::{Admin, Backend, ListedLock, Session},
};
use lockkit_etcd::{EtcdBackend, INSPECTED_DATA_CHARS_MAX};
use lockkit_testbed::Proxy;

use crate::common::{
    LONG, LONGEST, acquire, backend, bounded, enqueued, fresh_name, name, own_server, plain, queue, release,
    session, session_at, url_through,
};

/// Lifetime of the leases of other programs, in seconds.
const FOREIGN_TTL: i64 = 600;

/// Returns all locks, and how many pages they were on.
async fn listed(admin: &EtcdBackend, prefix: &str, limit: usize) -> (Vec<ListedLock>, usize) {
    let (mut locks, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = bounded(admin.list(prefix, after.as_deref(), limit)).await.unwrap();
        (pages, after) = (pages + 1, page.next);
        locks.extend(page.locks);
        if after.is_none() {
            return (locks, pages);
        }
    }
}

/// Returns the names of all locks; each must be listed once.
async fn names_in(admin: &EtcdBackend, prefix: &str, limit: usize) -> BTreeSet<String> {
    let (locks, _) = listed(admin, prefix, limit).await;
    let names: BTreeSet<String> = locks.iter().map(|lock| lock.name.clone().unwrap().into()).collect();
    assert_eq!(names.len(), locks.len(), "{locks:?}");
    names
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn inspection_shows_leases_and_what_others_have_stored() {
    let etcd = own_server();
    let (session, name, admin) = (session(&etcd, LONG).await, fresh_name(), backend(&etcd.url()));
    let mut other = plain(&etcd).await;
    let lease = other.lease_grant(FOREIGN_TTL, None).await.unwrap().id();
    let key = format!("{}{lease:x}", queue(&name));
    let own = PutOptions::new().with_lease(lease);
    other.put(&*key, "node\u{7}-7", Some(own.clone())).await.unwrap();
    let waiting = enqueued(&session, &name).await;

    let seen = admin.inspect(&name).await.unwrap();
    let holder = seen.holder.unwrap();
    assert_eq!(holder.session, Some(format!("{lease:016x}")));
    assert_eq!((holder.metadata, holder.data.as_deref()), (None, Some("node\u{7}-7")));
    let whole = Duration::from_secs(FOREIGN_TTL.unsigned_abs());
    assert!(holder.remaining.is_some_and(|left| left <= whole && left > whole / 2), "{:?}", holder.remaining);
    let waiter = &seen.waiters[0];
    assert!(waiter.metadata.is_some() && waiter.data.is_none(), "{waiter:?}");
    assert!(waiter.remaining.is_some_and(|left| left <= LONG), "{waiter:?}");
    let client = etcd.keys("lockkit/:clients/").unwrap().remove(0);
    assert!(client.contains(waiter.session.as_deref().unwrap().trim_start_matches('0')), "{client}");

    // Longer than what is shown, and not UTF-8.
    other.put(&*key, vec![0xff; 5_000], Some(own)).await.unwrap();
    let seen = admin.inspect(&name).await.unwrap().holder.unwrap();
    assert_eq!(seen.data, Some("\u{fffd}".repeat(INSPECTED_DATA_CHARS_MAX)));
    etcd.delete(&key).unwrap();
    release(&session, &waiting.granted().await).await;
}

/// The packages etcd3 and aetcd for Python store a value that only the holder knows.
#[tokio::test(flavor = "multi_thread")]
async fn value_of_a_foreign_key_that_excludes_is_not_shown() {
    let etcd = own_server();
    for (options, key) in [("form=single", "lockkit/x"), ("names=raw&guard=/locks/", "/locks/x")] {
        let mut other = plain(&etcd).await;
        let lease = other.lease_grant(FOREIGN_TTL, None).await.unwrap().id();
        let put = other.put(key, "0123456789abcdef", Some(PutOptions::new().with_lease(lease)));
        let created = put.await.unwrap().header().unwrap().revision();
        let seen = backend(&format!("{}/?{options}", etcd.url())).inspect(&name("x")).await.unwrap();
        assert!(!format!("{seen:?}").contains("0123456789abcdef"), "{options}");
        let holder = seen.holder.unwrap();
        assert_eq!((&*holder.entry, holder.session), (key, Some(format!("{lease:016x}"))), "{options}");
        assert_eq!(holder.token.map(|token| token.get()), u64::try_from(created).ok(), "{options}");
        assert!(holder.remaining.is_some(), "{options}");
        etcd.delete(key).unwrap();
    }
}

/// With raw names, the configuration of an application may lie where the contenders of a lock would.
#[tokio::test(flavor = "multi_thread")]
async fn value_of_other_data_in_a_queue_is_not_shown() {
    let etcd = own_server();
    for key in ["/app/password", "/app/password2", "/app/1f"] {
        etcd.put(key, "0123456789abcdef").unwrap();
    }
    let seen = backend(&format!("{}/?names=raw", etcd.url())).inspect(&name("/app")).await.unwrap();
    assert!(seen.holder.is_some() && seen.waiters.len() == 2, "{seen:?}");
    assert!(!format!("{seen:?}").contains("0123456789abcdef"), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_every_lock_and_nothing_else() {
    let etcd = own_server();
    let (long, emoji) = ("x".repeat(1_000), "🔒".repeat(256));
    let names = ["a", "a/b", "a%2Fb", "a.", ".", "/", ":clients", "z\n", &long, &emoji];
    let (session, admin) = (session(&etcd, LONGEST).await, backend(&etcd.url()));
    assert!(admin.info().powers.list && admin.info().powers.break_lock);
    let mut held = Vec::new();
    for lock in names {
        held.push(acquire(&session, &name(lock)).await);
    }
    let _waiting = [enqueued(&session, &name("a")).await, enqueued(&session, &name("a")).await];
    // What is no lock: records, pins, the clients' own keys, and what others have put there.
    session.records().unwrap().write(&held[0], "done", LONGEST).await.unwrap();
    assert!(session.pins().unwrap().pin(&held[1], LONG).await.unwrap());
    for other in ["lockkit/config", "lockkit/:clients/1/x", "lockkit2/x/y", "a/b"] {
        etcd.put(other, "").unwrap();
    }
    for limit in [1, 3, 1_000] {
        let (locks, pages) = listed(&admin, "", limit).await;
        let found: BTreeSet<String> = locks.iter().map(|lock| lock.name.clone().unwrap().into()).collect();
        assert_eq!((found, locks.len()), (set(&names), names.len()), "{limit}: {locks:?}");
        assert!(pages > names.len() / limit, "{pages} pages of {limit}");
    }
    assert_eq!(names_in(&admin, "a", 2).await, set(&["a", "a/b", "a%2Fb", "a."]));
    assert_eq!(names_in(&admin, "a.", 2).await, set(&["a."]));
    assert_eq!(names_in(&admin, "a/", 2).await, set(&["a/b"]));
    assert_eq!(names_in(&admin, "b", 2).await, set(&[]));
    let entry = listed(&admin, "a/b", 1).await.0.remove(0).entry;
    assert_eq!(entry, "lockkit/a%2Fb/");
    let wrong = bounded(admin.list("", Some("nowhere"), 3)).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidConfig);
}

/// Raw names lie among the data of other programs.
#[tokio::test(flavor = "multi_thread")]
async fn raw_locks_of_all_programs_are_told_from_other_data() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let url = format!("{}/?names=raw", etcd.url());
    let (session, admin) = (session_at(&url, LONG).await, backend(&url));
    let _held = [acquire(&session, &name("/jobs/x")).await, acquire(&session, &name("/jobs/x/y")).await];
    let _waiting = enqueued(&session, &name("/jobs/x")).await;
    let mut other = plain(&etcd).await;
    let lease = other.lease_grant(FOREIGN_TTL, None).await.unwrap().id();
    other.lock("go", Some(LockOptions::new().with_lease(lease))).await.unwrap();
    for data in ["/jobs/config", "/jobs/12", "/jobs/z/1f", "x", "lockkit/:clients/af/epoch"] {
        etcd.put(data, "").unwrap();
    }
    let expected = set(&["/jobs/x", "/jobs/x/y", "go"]);
    assert_eq!(names_in(&admin, "", 100).await, expected);
    assert_eq!(names_in(&admin, "/jobs/x/", 1).await, set(&["/jobs/x/y"]));
    let (locks, pages) = listed(&admin, "", 2).await;
    let found: BTreeSet<String> = locks.into_iter().filter_map(|lock| lock.name).map(Into::into).collect();
    assert!(found == expected && pages > 2, "{found:?} on {pages} pages");
    // etcd 3.7 omits leases from reads of keys only (etcd #22209).
    let through = backend(&format!("{}&names=raw", url_through(&proxy)));
    proxy.hide_leases();
    assert_eq!(names_in(&through, "", 100).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn single_keys_and_guard_keys_are_listed() {
    let etcd = own_server();
    let at = |options: &str| format!("{}/?{options}", etcd.url());
    let single = session_at(&at("form=single"), LONG).await;
    let _single = [acquire(&single, &name("a/b")).await, acquire(&single, &name("c")).await];
    etcd.put("lockkit/queue/x", "").unwrap();
    assert_eq!(names_in(&backend(&at("form=single")), "", 1).await, set(&["a/b", "c"]));

    let guarded = at("names=raw&guard=/locks/");
    let session: Arc<dyn Session> = session_at(&guarded, LONG).await;
    etcd.put("/locks/foreign", "0123456789abcdef").unwrap();
    let _ours = acquire(&session, &name("ours")).await;
    let _waiting = enqueued(&session, &name("foreign")).await;
    let (locks, _) = listed(&backend(&guarded), "", 1).await;
    let found: BTreeSet<String> = locks.iter().filter_map(|lock| lock.name.clone()).map(Into::into).collect();
    assert_eq!(found, set(&["foreign", "ours"]), "{locks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn layouts_without_a_border_to_other_data_cannot_be_listed() {
    for options in ["form=single&names=raw", "names=raw&guard="] {
        let admin = backend(&format!("etcd://127.0.0.1:1/?{options}"));
        assert!(!admin.info().powers.list && admin.info().powers.break_lock, "{options}");
        let error = bounded(admin.list("", None, 10)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{options}");
        assert!(error.to_string().contains("other data"), "{error}");
    }
}

/// A page reads a bounded part of a store with many clients, whose own keys are skipped.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_many_clients_cost_one_page() {
    let etcd = own_server();
    for number in 0..20 {
        etcd.put(&format!("lockkit/:clients/{number}/epoch"), "").unwrap();
    }
    let (session, admin) = (session(&etcd, LONG).await, backend(&etcd.url()));
    let _held = [acquire(&session, &name("0")).await, acquire(&session, &name("a")).await];
    let (locks, pages) = listed(&admin, "", 4).await;
    assert!(locks.len() == 2 && pages <= 2, "{locks:?} on {pages} pages");
}
