//! Locks shared with other programs: their contenders are waited for, whatever their family.

use lockkit_core::LockName;
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix};

use crate::common::{
    LONG, SHORT, acquire, bounded, contend, enqueued, fresh_name, is_gave_up, node, own_server, plain,
    release, session, session_at, shared, try_acquire, watching,
};

/// Curator's mutex, its read-write lock and its latch; kazoo; ZooKeeper's own recipes in Java and C; Medallion.
const FAMILIES: [&str; 9] = [
    "_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-lock-",
    "_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-__WRIT__",
    "_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-__READ__",
    "_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-latch-",
    "0a1b2c3d4e5f60718293a4b5c6d7e8f9__lock__",
    "0a1b2c3d4e5f60718293a4b5c6d7e8f9__rlock__",
    "x-72057594037927936-",
    "lock-",
    "write-",
];

#[tokio::test(flavor = "multi_thread")]
async fn contenders_of_every_family_are_waited_for_in_order() {
    let server = shared();
    let client = plain(server).await;
    for form in ["curator", "bare"] {
        let session = session_at(&format!("{}/?form={form}", server.url()), LONG).await;
        for family in FAMILIES {
            let name = fresh_name();
            let before = contend(&client, &name, family).await;
            assert!(is_gave_up(&try_acquire(&session, &name).await), "{family}");
            let waiting = enqueued(&session, &name).await;
            let behind = contend(&client, &name, family).await;
            let last = enqueued(&session, &name).await;
            client.delete(&before, None).await.unwrap();
            let held = waiting.granted().await;
            release(&session, &held).await;
            assert!(last.is_waiting(), "{family}");
            client.delete(&behind, None).await.unwrap();
            release(&session, &last.granted().await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_contender_is_waited_for() {
    let (server, name) = (own_server(), fresh_name());
    // Servers with the fix of CVE-2024-23944 send no event to a client that may not read the node: then this takes a
    // re-check. Nothing renews the session meanwhile.
    let session = session(&server, 2 * SHORT).await;
    release(&session, &acquire(&session, &name).await).await;
    let client = plain(&server).await;
    client.auth("digest", b"other:secret").await.unwrap();
    let prefix = format!("{}/lock-", node(&name));
    let options = CreateMode::EphemeralSequential.with_acls(Acls::creator_all());
    let (_, number) = client.create(&prefix, b"", &options).await.unwrap();
    let waiting = watching(&server, &session, &name).await;
    client.delete(&format!("{prefix}{number}"), None).await.unwrap();
    release(&session, &waiting.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_crates_own_lock_and_ours_exclude_each_other() {
    let (server, name) = (shared(), fresh_name());
    let (client, session) = (plain(server).await, session(server, LONG).await);
    let ours = acquire(&session, &name).await;
    let directory = node(&name);
    let theirs = async || {
        let prefix = LockPrefix::new_curator(&directory, "lock-").unwrap();
        client.lock(prefix, b"", LockOptions::new(Acls::anyone_all())).await.unwrap()
    };
    let contenders = async || server.children(&directory).unwrap().len();
    let (theirs, ()) = tokio::join!(bounded(theirs()), async {
        crate::common::until("theirs waits", async || contenders().await == 2).await;
        release(&session, &ours).await;
    });
    let waiting = enqueued(&session, &name).await;
    drop(theirs);
    release(&session, &waiting.granted().await).await;
}

/// 2^31 creates are out of reach. This test only shows that the server's names are read in the right order, so both
/// sides of the wrap are created directly.
#[tokio::test(flavor = "multi_thread")]
async fn order_is_right_where_numbers_wrap() {
    use lockkit_core::backend::Backend;
    let (server, name) = (shared(), fresh_name());
    let client = plain(server).await;
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.mkdir(&node(&name), &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    let in_order = ["lock-2147483646", "lock-2147483647", "lock--2147483648", "lock--2147483647"];
    for child in in_order.iter().rev() {
        client.create(&format!("{}/{child}", node(&name)), b"", &options).await.unwrap();
    }
    let backend = crate::common::backend(&server.url());
    let seen = bounded(backend.admin().unwrap().inspect(&name)).await.unwrap();
    let entries = seen.holder.into_iter().chain(seen.waiters).map(|contender| contender.entry);
    assert_eq!(entries.collect::<Vec<_>>(), in_order);
}

/// The other programs lock in another form than the inspecting client.
#[tokio::test(flavor = "multi_thread")]
async fn inspection_shows_holders_of_the_other_forms() {
    use lockkit_core::backend::Backend;
    let server = shared();
    let client = plain(server).await;
    let inspect = async |form: &str, name: &LockName| {
        let backend = crate::common::backend(&format!("{}/?form={form}", server.url()));
        bounded(backend.admin().unwrap().inspect(name)).await.unwrap().holder
    };
    let lasting = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    for form in ["curator", "bare", "single"] {
        let [node_is_lock, directory] = [fresh_name(), fresh_name()];
        client.mkdir(&node(&directory), &lasting).await.unwrap();
        assert_eq!(inspect(form, &directory).await, None, "{form}: an empty directory holds nothing");
        let first = contend(&client, &directory, "lock-").await;
        contend(&client, &directory, "lock-").await;
        let holder = inspect(form, &directory).await.unwrap();
        assert!(first.ends_with(&holder.entry), "{form}: {first} holds it, not {holder:?}");
        client.create(&node(&node_is_lock), b"theirs", &ephemeral).await.unwrap();
        let holder = inspect(form, &node_is_lock).await.unwrap();
        assert_eq!((&*holder.entry, holder.metadata), (node_is_lock.as_str(), None), "{form}");
    }
}
