//! Lock names as node names, where other programs lock the same nodes.

use lockkit_core::ErrorKind;
use lockkit_testbed::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::common::{
    LONG, acquire, enqueued, fresh_name, is_gave_up, name, plain, release, session_at, shared, start,
    try_acquire,
};

/// Names that other programs use unchanged, and that this library encodes by default.
const ENCODED_BY_DEFAULT: [&str; 5] = ["job:1", "nightly job", "wow!", "käse", "50%"];

/// Creates a contender as Curator's `InterProcessMutex` does for this path, and returns the contender's path.
async fn curators_contender(client: &Client, path: &str) -> String {
    let anyone = Acls::anyone_all();
    client.mkdir(path, &CreateMode::Container.with_acls(anyone)).await.unwrap();
    let prefix = format!("{path}/_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-lock-");
    let options = CreateMode::EphemeralSequential.with_acls(anyone);
    let (_, number) = client.create(&prefix, b"", &options).await.unwrap();
    format!("{prefix}{number}")
}

fn url(server: &ZooKeeper, options: &str) -> String {
    format!("{}/?root=/interop{options}", server.url())
}

#[tokio::test(flavor = "multi_thread")]
async fn name_that_would_be_encoded_is_refused_where_the_root_is_named() {
    let server = shared();
    let (client, session) = (plain(server).await, session_at(&url(server, ""), LONG).await);
    for text in ENCODED_BY_DEFAULT {
        let foreign = curators_contender(&client, &format!("/interop/{text}")).await;
        let error = start(&session, &name(text)).ends().await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::InvalidName, Some(&name(text))), "{error}");
        for way_out in ["names=raw", "names=encoded"] {
            assert!(error.to_string().contains(way_out), "{error}");
        }
        client.delete(&foreign, None).await.unwrap();
    }
    // A name that needs no encoding is the same node in every spelling.
    let plain_name = fresh_name();
    let held = acquire(&session, &plain_name).await;
    for names in ["encoded", "raw"] {
        let other = session_at(&url(server, &format!("&names={names}")), LONG).await;
        assert!(is_gave_up(&try_acquire(&other, &plain_name).await), "{names}");
    }
    release(&session, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_name_excludes_curators_mutex_on_the_node_of_that_name() {
    let server = shared();
    let client = plain(server).await;
    let session = session_at(&url(server, "&names=raw"), LONG).await;
    for text in ENCODED_BY_DEFAULT {
        let (path, name) = (format!("/interop/{text}"), name(text));
        let foreign = curators_contender(&client, &path).await;
        assert!(is_gave_up(&try_acquire(&session, &name).await), "{text}");
        let waiting = enqueued(&session, &name).await;
        let behind = curators_contender(&client, &path).await;
        client.delete(&foreign, None).await.unwrap();
        let held = waiting.granted().await;
        // Curator sees our node before its own.
        let mut queue = server.children(&path).unwrap();
        queue.sort_by_key(|child| child[child.len() - 10..].to_owned());
        assert_eq!(queue.len(), 2, "{text}");
        assert!(behind.ends_with(&queue[1]), "{text}");
        release(&session, &held).await;
        client.delete(&behind, None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_name_that_is_not_a_valid_node_name_is_refused() {
    let server = shared();
    let session = session_at(&url(server, "&names=raw"), LONG).await;
    for text in ["a/b", ".", "..", "a\u{0}b", "\u{7}", "\u{85}", "\u{e000}", "\u{fffd}", "🔒", ":clients"] {
        let error = start(&session, &name(text)).ends().await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::InvalidName, Some(&name(text))), "{text:?}");
    }
    for text in ["...", ".a", "a.", "-", "x\u{9a8f}"] {
        release(&session, &acquire(&session, &name(text)).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_name_may_be_encoded_where_the_root_is_named() {
    let session = session_at(&url(shared(), "&names=encoded"), LONG).await;
    for text in ["job:1", "a/b", ".", ":clients", "🔒"] {
        let held = acquire(&session, &name(text)).await;
        assert!(is_gave_up(&try_acquire(&session, &name(text)).await), "{text}");
        release(&session, &held).await;
    }
}
