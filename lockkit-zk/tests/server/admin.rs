//! What an operator sees: who holds a lock with which session, and which locks there are.

use std::time::Instant;

use lockkit_core::{
    ErrorKind, LockName, Result,
    backend::{Backend, Contender, Page},
    limits::TTL_DEFAULT,
};
use lockkit_testbed::{Proxy, ZooKeeper};
use lockkit_zk::{INSPECTED_CONTENDERS_MAX, INSPECTED_DATA_CHARS_MAX};
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use crate::common::{
    LONG, acquire, backend, bounded, contend, enqueued, fresh_name, inspect, is_gave_up, name, node,
    own_server, patient_url, plain, release, session, session_at, shared, until,
};

/// Creates a sequential ephemeral node with these data and permissions.
async fn contend_with(client: &Client, prefix: &str, data: &[u8], acls: Acls<'_>) -> String {
    let (_, number) =
        client.create(prefix, data, &CreateMode::EphemeralSequential.with_acls(acls)).await.unwrap();
    format!("{prefix}{number}")
}

fn entry_of(contender: &Contender) -> (&str, Option<&str>, Option<&str>) {
    (&contender.entry, contender.session.as_deref(), contender.data.as_deref())
}

#[tokio::test(flavor = "multi_thread")]
async fn inspection_shows_sessions_and_the_data_of_other_programs() {
    let (server, name) = (shared(), fresh_name());
    let (ours, theirs) = (session(server, LONG).await, plain(server).await);
    let held = acquire(&ours, &name).await;
    let cut = "\u{e4}".repeat(INSPECTED_DATA_CHARS_MAX);
    let long = format!("{cut}more");
    let mut behind = Vec::new();
    for data in [&b"10.0.0.7"[..], b"", &[b'a', 0xff], long.as_bytes()] {
        let path = contend_with(&theirs, &format!("{}/lock-", node(&name)), data, Acls::anyone_all()).await;
        behind.push(path.rsplit_once('/').unwrap().1.to_owned());
    }
    let seen = inspect(&server.url(), &name).await;
    let holder = seen.holder.unwrap();
    let of_holder = |paths: &Vec<String>| paths.iter().any(|path| path.ends_with(&holder.entry));
    let (owner, _) = server.ephemerals().unwrap().into_iter().find(|(_, paths)| of_holder(paths)).unwrap();
    assert_eq!((holder.session, holder.data, holder.remaining), (Some(format!("{owner:#x}")), None, None));
    assert!(holder.metadata.is_some() && holder.token == Some(held.token()));
    let their_session = format!("{:#x}", theirs.session_id().0);
    let shown: Vec<_> = seen.waiters.iter().map(entry_of).collect();
    let expected = [Some("10.0.0.7"), None, Some("a\u{fffd}"), Some(&*cut)];
    let expected: Vec<_> = behind
        .iter()
        .zip(expected)
        .map(|(entry, data)| (entry.as_str(), Some(their_session.as_str()), data))
        .collect();
    assert_eq!(shown, expected);
    assert!(seen.waiters.iter().all(|waiter| waiter.token.is_none()), "a waiter has no grant");
    release(&ours, &held).await;
}

/// If it was left out, the waiter behind it would be shown as the holder.
#[tokio::test(flavor = "multi_thread")]
async fn holder_that_may_not_be_read_is_shown_without_data() {
    let (server, name) = (shared(), fresh_name());
    let ours = session(server, LONG).await;
    release(&ours, &acquire(&ours, &name).await).await;
    let theirs = plain(server).await;
    theirs.auth("digest", b"other:secret").await.unwrap();
    let prefix = format!("{}/lock-", node(&name));
    let holder = contend_with(&theirs, &prefix, b"private", Acls::creator_all()).await;
    let waiting = enqueued(&ours, &name).await;
    let seen = inspect(&server.url(), &name).await;
    let shown = seen.holder.unwrap();
    assert!(holder.ends_with(&shown.entry), "{shown:?}");
    assert_eq!((shown.metadata, shown.data, seen.waiters.len()), (None, None, 1));
    assert_eq!(shown.session, Some(format!("{:#x}", theirs.session_id().0)));
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
}

/// Otherwise the waiters behind it would not be shown.
#[tokio::test(flavor = "multi_thread")]
async fn contender_that_leaves_during_an_inspection_hides_no_other_one() {
    let (server, name) = (shared(), fresh_name());
    let client = plain(server).await;
    let first = contend(&client, &name, "lock-").await;
    let second = contend(&client, &name, "lock-").await;
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    proxy.hold_requests_from(&first);
    let leaving = async {
        until("the nodes are asked for", async || proxy.holds(&first)).await;
        client.delete(&first, None).await.unwrap();
        proxy.pass();
    };
    let url = patient_url(&proxy);
    let (seen, ()) = tokio::join!(inspect(&url, &name), leaving);
    let holder = seen.holder.expect("the second one holds the lock now");
    assert_eq!(format!("{}/{}", node(&name), holder.entry), second);
    assert!(seen.waiters.is_empty(), "{:?}", seen.waiters);
}

async fn page(url: &str, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
    let backend = backend(url);
    assert!(backend.info().powers.list);
    bounded(backend.admin().unwrap().list(prefix, after, limit)).await
}

/// Returns all listed locks with their nodes, and the number of pages.
async fn listed(url: &str, prefix: &str, limit: usize) -> (Vec<(Option<String>, String)>, usize) {
    let (mut locks, mut pages, mut after) = (Vec::new(), 0, None);
    loop {
        let page = page(url, prefix, after.as_deref(), limit).await.unwrap();
        assert!(page.locks.len() <= limit, "{page:?}");
        let name = |name: Option<LockName>| name.map(|name| name.as_str().to_owned());
        locks.extend(page.locks.into_iter().map(|lock| (name(lock.name), lock.entry)));
        pages += 1;
        match page.next {
            None => return (locks, pages),
            next => after = next,
        }
    }
}

fn lock(name: &str, node: &str) -> (Option<String>, String) {
    (Some(name.to_owned()), node.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn list_shows_every_lock_with_contenders_page_by_page() {
    let server = own_server();
    let (ours, theirs) = (session(&server, LONG).await, plain(&server).await);
    let mut held = Vec::new();
    for text in ["orders/1", "orders/2", "orders 3", "a-0000000001", ".z"] {
        held.push(acquire(&ours, &name(text)).await);
    }
    let long = "x".repeat(1000);
    held.push(acquire(&ours, &name(&long)).await);
    contend(&theirs, &name("theirs"), "__lock__").await;
    // Records, also those that look like contenders, and directories without contenders are no locks.
    assert!(ours.records().unwrap().write(&held[3], "done", LONG).await.unwrap());
    release(&ours, &acquire(&ours, &name("orders/released")).await).await;
    server.create("/lockkit/junk", "").unwrap();
    server.create("/lockkit/junk/leases", "").unwrap();

    let (all, pages) = listed(&server.url(), "", 2).await;
    let cut = name(&long).encode(512);
    let expected = [
        lock(".z", "/lockkit/%2Ez"),
        lock("a-0000000001", "/lockkit/a-0000000001"),
        lock("orders 3", "/lockkit/orders%203"),
        lock("orders/1", "/lockkit/orders%2F1"),
        lock("orders/2", "/lockkit/orders%2F2"),
        lock("theirs", "/lockkit/theirs"),
        (None, format!("/lockkit/{cut}")),
    ];
    assert_eq!((all.as_slice(), pages), (&expected[..], 4));
    for limit in [1, 3, 7, 1000] {
        assert_eq!(listed(&server.url(), "", limit).await.0, expected, "{limit}");
    }
    assert_eq!(listed(&server.url(), "orders", 1).await.0, expected[2..5]);
    assert_eq!(listed(&server.url(), "orders/", 9).await.0, expected[3..5]);
    assert_eq!(listed(&server.url(), ".", 9).await.0, expected[..1]);
    assert_eq!(listed(&server.url(), "xxx", 9).await.0, expected[6..]);
    assert_eq!(listed(&server.url(), "y", 9).await, (Vec::new(), 1));
    for grant in &held {
        release(&ours, grant).await;
    }
    assert_eq!(listed(&server.url(), "", 2).await.0, expected[5..6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn list_shows_the_locks_of_every_form_and_spelling() {
    let server = own_server();
    assert_eq!(listed(&format!("{}/?root=/no/such", server.url()), "", 9).await, (Vec::new(), 1));
    for form in ["curator", "bare", "single"] {
        let url = |names: &str| format!("{}/?root=/{form}&form={form}{names}", server.url());
        let session = session_at(&url("&names=raw"), LONG).await;
        let held = [acquire(&session, &name("job:1")).await, acquire(&session, &name("job-2")).await];
        let (plain, colon) = (format!("/{form}/job-2"), format!("/{form}/job:1"));
        let raw = [lock("job-2", &plain), lock("job:1", &colon)];
        assert_eq!(listed(&url("&names=raw"), "job", 1).await, (raw.to_vec(), 2), "{form}");
        // The configuration cannot spell the name of one of them.
        let spelled = [lock("job-2", &plain), (None, colon)];
        for names in ["", "&names=encoded"] {
            assert_eq!(listed(&url(names), "job", 1).await.0, spelled, "{form}");
        }
        for grant in &held {
            release(&session, grant).await;
        }
        assert_eq!(listed(&url("&names=raw"), "", 9).await.0, [], "{form}");
    }
    // The root is that of the server.
    let session = session_at(&format!("{}/?root=/", server.url()), LONG).await;
    let held = acquire(&session, &name("top")).await;
    assert_eq!(listed(&format!("{}/?root=/", server.url()), "", 1).await.0, [lock("top", "/top")]);
    release(&session, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_that_may_not_be_read_is_listed() {
    let (server, root) = (shared(), fresh_name());
    let client = plain(server).await;
    let acl = [Acl::new(Permission::CREATE | Permission::DELETE, AuthId::anyone())];
    client.mkdir(&format!("/{root}"), &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    for child in ["empty", "held"] {
        let path = format!("/{root}/{child}");
        client.create(&path, b"", &CreateMode::Persistent.with_acls(Acls::new(&acl))).await.unwrap();
    }
    contend_with(&client, &format!("/{root}/held/lock-"), b"", Acls::anyone_all()).await;
    let url = format!("{}/?root=/{root}", server.url());
    assert_eq!(listed(&url, "", 9).await.0, [lock("held", &format!("/{root}/held"))]);
}

/// Its metadata, which need no permission, show that a session owns it.
#[tokio::test(flavor = "multi_thread")]
async fn lock_that_is_one_node_and_may_not_be_read_is_listed() {
    let server = shared();
    let (root, [held]) = root_with(server, ["held"]).await;
    let client = plain(server).await;
    client.delete(&held, None).await.unwrap();
    let acl = [Acl::new(Permission::DELETE, AuthId::anyone())];
    client.create(&held, b"", &CreateMode::Ephemeral.with_acls(Acls::new(&acl))).await.unwrap();
    assert_eq!(listed(&format!("{}/?root={root}", server.url()), "", 9).await.0, [lock("held", &held)]);
}

/// Creates directories in a root of their own; returns the path of the root, and theirs.
async fn root_with<const COUNT: usize>(
    server: &ZooKeeper,
    children: [&str; COUNT],
) -> (String, [String; COUNT]) {
    let root = format!("/{}", fresh_name());
    let paths = children.map(|child| format!("{root}/{child}"));
    let client = plain(server).await;
    for path in &paths {
        client.mkdir(path, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    }
    (root, paths)
}

/// Otherwise a page would take as many round trips as it has locks.
#[tokio::test(flavor = "multi_thread")]
async fn directories_of_a_page_are_looked_into_at_once() {
    let server = shared();
    let (root, paths) = root_with(server, ["a", "b", "c"]).await;
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    proxy.hold_requests_from(&paths[0]);
    let looking = async {
        until("all are asked for", async || paths.iter().all(|path| proxy.holds(path))).await;
        proxy.pass();
    };
    let url = format!("{}&root={root}", patient_url(&proxy));
    let (found, ()) = tokio::join!(listed(&url, "", 9), looking);
    assert_eq!(found, (Vec::new(), 1));
}

/// The server may remove a container once its last contender has left.
#[tokio::test(flavor = "multi_thread")]
async fn directory_that_vanishes_while_a_page_is_read_is_left_out() {
    let server = shared();
    let (root, [gone, held]) = root_with(server, ["gone", "held"]).await;
    let client = plain(server).await;
    contend_with(&client, &format!("{held}/lock-"), b"", Acls::anyone_all()).await;
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    proxy.hold_requests_from(&gone);
    let vanishing = async {
        until("it is asked for", async || proxy.holds(&gone)).await;
        client.delete(&gone, None).await.unwrap();
        proxy.pass();
    };
    let url = format!("{}&root={root}", patient_url(&proxy));
    let (found, ()) = tokio::join!(listed(&url, "", 9), vanishing);
    assert_eq!(found, (vec![lock("held", &held)], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn page_of_empty_directories_names_where_the_next_one_begins() {
    const DIRECTORIES: usize = 4200;
    let (server, root) = (own_server(), "/many");
    let client = plain(&server).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir(root, &options).await.unwrap();
    let paths: Vec<String> = (0..DIRECTORIES).map(|number| format!("{root}/d{number:05}")).collect();
    let created: Vec<_> = paths.iter().map(|path| client.create(path, b"", &options)).collect();
    for create in created {
        create.await.unwrap();
    }
    contend_with(&client, &format!("{root}/d04199/lock-"), b"", Acls::anyone_all()).await;
    let (locks, pages) = listed(&format!("{}/?root={root}", server.url()), "", 9).await;
    assert_eq!((locks, pages), (vec![lock("d04199", "/many/d04199")], 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn page_without_room_has_one_lock() {
    let (server, root) = (shared(), fresh_name());
    let url = format!("{}/?root=/{root}", server.url());
    let session = session_at(&url, LONG).await;
    let _held = [acquire(&session, &name("a")).await, acquire(&session, &name("b")).await];
    let page = page(&url, "", None, 0).await.unwrap();
    assert_eq!((page.locks.len(), page.next.as_deref()), (1, Some("a")));
}

#[tokio::test(flavor = "multi_thread")]
async fn list_refuses_what_no_page_ends_with_and_a_root_that_may_not_be_read() {
    let (server, root) = (shared(), fresh_name());
    let error = page(&server.url(), "", Some("a/b"), 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let acl = [Acl::new(Permission::CREATE, AuthId::anyone())];
    let options = CreateMode::Persistent.with_acls(Acls::new(&acl));
    plain(server).await.create(&format!("/{root}"), b"", &options).await.unwrap();
    let error = page(&format!("{}/?root=/{root}", server.url()), "", None, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn inspection_of_a_long_queue_leaves_its_end_out() {
    let (server, name) = (shared(), fresh_name());
    let client = plain(server).await;
    contend(&client, &name, "lock-").await;
    let (prefix, options) =
        (format!("{}/lock-", node(&name)), CreateMode::EphemeralSequential.with_acls(Acls::anyone_all()));
    let created: Vec<_> =
        (0..INSPECTED_CONTENDERS_MAX).map(|_| client.create(&prefix, b"", &options)).collect();
    for create in created {
        create.await.unwrap();
    }
    let seen = inspect(&format!("{}/?request_timeout=60s", server.url()), &name).await;
    assert_eq!(seen.holder.unwrap().entry, "lock-0000000000");
    assert_eq!(seen.waiters.len(), INSPECTED_CONTENDERS_MAX - 1);
}

/// Each request of an operator opens a session of its own.
#[tokio::test(flavor = "multi_thread")]
async fn operator_leaves_no_session_to_its_ttl() {
    let (server, name) = (own_server(), fresh_name());
    let holder = session(&server, LONG).await;
    let _held = acquire(&holder, &name).await;
    // The table of sessions may lack one that is just renewed, so each session's connection counts, too.
    let is_alone = || server.sessions().unwrap() <= 1 && server.connections().unwrap().len() == 1;
    // Otherwise the server would end it after its ttl.
    let is_closed = async |asked: Instant| {
        until("its session is closed", async || is_alone()).await;
        assert!(asked.elapsed() < TTL_DEFAULT / 2, "{:?}", asked.elapsed());
    };
    let asked = Instant::now();
    assert!(inspect(&server.url(), &name).await.holder.is_some());
    is_closed(asked).await;
    let (backend, asked) = (backend(&server.url()), Instant::now());
    let page = bounded(backend.admin().unwrap().list("", None, 10)).await.unwrap();
    assert_eq!(page.locks.len(), 1);
    is_closed(asked).await;
    let (found, asked) = (inspect(&server.url(), &name).await.holder.unwrap(), Instant::now());
    assert!(bounded(backend.admin().unwrap().break_lock(&name, &found)).await.unwrap());
    is_closed(asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_who_is_denied_leaves_no_session_to_its_ttl() {
    let (server, root, name) = (own_server(), fresh_name(), fresh_name());
    let client = plain(&server).await;
    let acl = [Acl::new(Permission::CREATE | Permission::DELETE, AuthId::anyone())];
    let (directory, lock) = (format!("/{root}"), format!("/{root}/{name}"));
    for path in [&directory, &lock] {
        client.create(path, b"", &CreateMode::Persistent.with_acls(Acls::new(&acl))).await.unwrap();
    }
    // Only the plain client is left.
    let is_alone = || server.sessions().unwrap() <= 1 && server.connections().unwrap().len() == 1;
    let is_closed = async || {
        let closed = until("its session is closed", async || is_alone());
        tokio::time::timeout(TTL_DEFAULT / 2, closed).await.expect("it ends with its ttl");
    };
    let backend = backend(&format!("{}/?root=/{root}", server.url()));
    let operator = backend.admin().unwrap();
    let error = bounded(operator.inspect(&name)).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    is_closed().await;
    let error = bounded(operator.list("", None, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    is_closed().await;
    // The next test could not list it to delete it.
    client.delete(&lock, None).await.unwrap();
}
