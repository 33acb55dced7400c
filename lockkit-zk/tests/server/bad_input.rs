//! Wrong configurations, and foreign data in stores.

use std::time::Duration;

use lockkit_core::{ErrorKind, LockClient, backend::Renewal};
use lockkit_testbed::{ZooKeeper, ZooKeeperOptions};

use crate::common::{
    BEFORE_A_RECHECK, LONG, acquire, backend, bounded, contend, enqueued, fresh_name, heartbeat, is_renewed,
    name, node, own_ensemble, own_server, plain, queue, refusal, release, session, session_at, shared,
    sooner_than, start, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn missing_chroot_is_reported_and_existing_one_is_used() {
    let server = own_server();
    let error = refusal(&format!("{}/apps/one", server.url())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("the chroot /apps/one does not exist; create it"), "{error}");
    server.create("/apps", "").unwrap();
    server.create("/apps/one", "").unwrap();
    let (session, name) = (session_at(&format!("{}/apps/one", server.url()), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    assert_eq!(server.children(&format!("/apps/one/lockkit/{name}")).unwrap().len(), 2);
    assert!(is_renewed(&heartbeat(&session, &[&held]).await.holds[0].1));
    release(&session, &held).await;
    release(&session, &waiting.granted().await).await;
    // Another chroot has other locks.
    let outside = crate::common::session(&server, LONG).await;
    let held = acquire(&outside, &name).await;
    release(&session, &acquire(&session, &name).await).await;
    release(&outside, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permission_is_denied() {
    let server = own_server();
    let at =
        |login: &str, options: &str| format!("zk://{login}{}/?root=/private{options}", server.endpoint());
    // With a login, all nodes belong to that user.
    let owner = session_at(&at("app:hunter2@", ""), LONG).await;
    let name = fresh_name();
    let held = acquire(&owner, &name).await;
    for login in ["", "app:sesame@", "other:hunter2@"] {
        let error = refusal(&at(login, "")).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{login}: {error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hunter") && !text.contains("sesame"), "{text}");
        assert!(text.contains("`getAcl /private`"), "{text}");
        let hint = "if the password is wrong, that is another identity";
        assert_eq!(text.contains(hint), !login.is_empty(), "{text}");
    }
    let again = session_at(&at("app:hunter2@", ""), LONG).await;
    let waiting = enqueued(&again, &name).await;
    release(&owner, &held).await;
    release(&again, &waiting.granted().await).await;
    // With a configured ACL.
    let url =
        format!("zk://app:hunter2@{}/?root=/shared&acl=auth::cdrwa,world:anyone:cdrw", server.endpoint());
    let owner = session_at(&url, LONG).await;
    let other = session_at(&format!("{}/?root=/shared", server.url()), LONG).await;
    let held = acquire(&owner, &name).await;
    let waiting = enqueued(&other, &name).await;
    release(&owner, &held).await;
    release(&other, &waiting.granted().await).await;
}

/// Others could replace what a holder proposes or has recorded.
#[tokio::test(flavor = "multi_thread")]
async fn every_node_of_a_client_with_a_login_is_closed_to_others() {
    let (server, root, name) = (shared(), fresh_name(), fresh_name());
    let url = format!("zk://app:secret@{}/?root=/{root}", server.endpoint());
    let (session, stranger) = (session_at(&url, LONG).await, plain(server).await);
    let held = acquire(&session, &name).await;
    assert!(bounded(session.records().unwrap().write(&held, "x", LONG)).await.unwrap());
    let mut paths: Vec<String> = server.ephemerals().unwrap().into_values().flatten().collect();
    paths.retain(|path| path.starts_with(&format!("/{root}/")));
    assert_eq!(paths.len(), 2, "its own node and the claim's: {paths:?}");
    paths.extend([format!("/{root}/{name}"), format!("/{root}/:records/{name}")]);
    for path in paths {
        let error = stranger.get_data(&path).await.unwrap_err();
        assert_eq!(error, zookeeper_client::Error::NoAuth, "{path}");
    }
    release(&session, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_open_leaves_no_session() {
    let server = own_server();
    let _owner = session_at(&format!("zk://app:hunter2@{}/?root=/private", server.endpoint()), LONG).await;
    // Long before the session would expire. The owner's stays.
    sooner_than(BEFORE_A_RECHECK, async || {
        let error = refusal(&format!("{}/?root=/private", server.url())).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        until("its session is closed", async || server.sessions().unwrap() == 1).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_without_permission_is_denied_with_the_lock_name() {
    let server = own_server();
    let name = fresh_name();
    let owner =
        session_at(&format!("zk://app:hunter2@{}/?acl=world:anyone:cdrwa", server.endpoint()), LONG).await;
    // Only its directory belongs to a user.
    let private = session_at(&format!("zk://app:hunter2@{}", server.endpoint()), LONG).await;
    release(&private, &acquire(&private, &name).await).await;
    release(&owner, &acquire(&owner, &name).await).await;
    let stranger = session(&server, LONG).await;
    let error = start(&stranger, &name).ends().await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    assert!(is_renewed(&heartbeat(&stranger, &[]).await.session), "the session is affected");
    release(&stranger, &acquire(&stranger, &fresh_name()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn auth_acl_without_login_is_refused() {
    let error = refusal(&format!("{}/?root=/own&acl=auth::cdrwa", shared().url())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_and_single_node_of_one_lock_are_an_error() {
    let server = shared();
    let queued = session(server, LONG).await;
    let single = session_at(&format!("{}/?form=single", server.url()), LONG).await;
    // The parent of the queue is an ephemeral node.
    let name = fresh_name();
    let held = acquire(&single, &name).await;
    let error = start(&queued, &name).ends().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(error.to_string().contains("ephemeral"), "{error}");
    release(&single, &held).await;
    // A directory exists at the path of the single node.
    let name = fresh_name();
    let held = acquire(&queued, &name).await;
    let error = start(&single, &name).ends().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    release(&queued, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn list_larger_than_the_servers_buffer_is_read() {
    const WAITERS: usize = 60;
    let server =
        ZooKeeper::start_with(ZooKeeperOptions { buffer_bytes: 2_000, ..Default::default() }).unwrap();
    let (session, name) = (session(&server, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        waiting.push(enqueued(&session, &name).await);
    }
    let names: usize = queue(&server, &name).iter().map(String::len).sum();
    assert!(names > 2_000, "{names}");
    release(&session, &held).await;
    let first = waiting.remove(0).granted().await;
    for waiting in waiting {
        waiting.control.give_up();
        assert!(crate::common::is_gave_up(&waiting.ends().await));
    }
    release(&session, &first).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_in_a_queue_is_ignored() {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, LONG).await;
    release(&session, &acquire(&session, &name).await).await;
    let junk = ["config", "lock-", "lock-12", "a-lock-abc", "0123456789x", "übung", "lock-9999999999", "-"];
    for child in junk {
        server.create(&format!("{}/{child}", node(&name)), "x").unwrap();
    }
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    release(&session, &held).await;
    release(&session, &waiting.granted().await).await;
    assert_eq!(queue(server, &name).len(), junk.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_node_data_is_ignored() {
    use lockkit_core::backend::Backend;
    let (server, name) = (shared(), fresh_name());
    let client = plain(server).await;
    let foreign = contend(&client, &name, "lock-").await;
    client.set_data(&foreign, &[0xff; 10_000], None).await.unwrap();
    let session = session(server, LONG).await;
    let waiting = enqueued(&session, &name).await;
    // A change of its data does not wake the waiter.
    client.set_data(&foreign, b"__REVOKE__", None).await.unwrap();
    let seen = bounded(backend(&server.url()).admin().unwrap().inspect(&name)).await.unwrap();
    assert_eq!(seen.holder.unwrap().metadata, None);
    assert!(waiting.is_waiting());
    client.delete(&foreign, None).await.unwrap();
    release(&session, &waiting.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ttl_is_what_the_server_grants() {
    let bounds = ZooKeeperOptions {
        session_min: Duration::from_secs(20),
        session_max: Duration::from_secs(40),
        ..Default::default()
    };
    let server = ZooKeeper::start_with(bounds).unwrap();
    for (asked, granted) in [(10, 20), (30, 30), (60, 40)] {
        let client = LockClient::builder(backend(&server.url()))
            .ttl(Duration::from_secs(asked))
            .build()
            .await
            .unwrap();
        assert_eq!(client.ttl(), Duration::from_secs(granted));
        client.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ensemble_without_quorum_is_unavailable() {
    let ensemble = own_ensemble();
    let (session, name) = (session_at(&ensemble.url(), LONG).await, name("x"));
    let held = acquire(&session, &name).await;
    for member in 0..ensemble.len() {
        ensemble.cut(member).unwrap();
    }
    until("heartbeats are unanswered", async || {
        matches!(heartbeat(&session, &[&held]).await.session, Renewal::Unknown(_))
    })
    .await;
    until("the members have noticed", async || {
        (0..ensemble.len()).all(|member| ensemble.member(member).metrics().is_err())
    })
    .await;
    let error = refusal(&format!("{}/?request_timeout=1s", ensemble.url())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    ensemble.heal();
    until("it is renewed", async || is_renewed(&heartbeat(&session, &[&held]).await.session)).await;
    release(&session, &held).await;
}
