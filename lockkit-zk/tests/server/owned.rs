//! Writes that the store refuses once the lock is gone.

use std::sync::atomic::Ordering::SeqCst;

use lockkit_core::{ErrorKind, LockClient};
use zookeeper_client::{Error, MultiWriteError};

use crate::common::{LONG, backend, bounded, fresh_name, node, plain, queue, shared, shifted_clock};

#[tokio::test(flavor = "multi_thread")]
async fn write_after_the_lock_is_lost_is_refused_by_the_store() {
    let (server, name) = (shared(), fresh_name());
    let backend = backend(&server.url());
    let client = LockClient::builder(backend.clone()).ttl(LONG).build().await.unwrap();
    let guard = client.lock(name.as_str()).unwrap().acquire().await.unwrap();
    let owned = backend.owned(&guard).unwrap();
    let target = format!("/target-{name}");
    server.create(&target, "old").unwrap();
    let user = plain(server).await;
    let write = async |data: &[u8]| {
        let mut transaction = user.new_multi_writer();
        owned.check_in(&mut transaction).unwrap();
        transaction.add_set_data(&target, data, None).unwrap();
        bounded(transaction.commit()).await
    };
    write(b"new").await.unwrap();
    // An operator ends the hold without the client's knowledge.
    assert_eq!(owned.path(), format!("{}/{}", node(&name), queue(server, &name)[0]));
    assert!(server.delete(owned.path()).unwrap());
    assert_eq!(
        write(b"late").await.unwrap_err(),
        MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }
    );
    assert_eq!(user.get_data(&target).await.unwrap().0, b"new");
    client.close().await.unwrap();
    assert_eq!(backend.owned(&guard).unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn guard_of_another_backend_is_refused() {
    let name = fresh_name();
    let (own, other) = (backend(&shared().url()), backend(&shared().url()));
    let client = LockClient::builder(other).ttl(LONG).build().await.unwrap();
    let guard = client.lock(name.as_str()).unwrap().acquire().await.unwrap();
    let error = own.owned(&guard).unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Lost, Some(&name)), "{error}");
    for form in ["bare", "single"] {
        let recurring = backend(&format!("{}/?form={form}", shared().url()));
        let error = recurring.owned(&guard).unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Unsupported, Some(&name)), "{form}: {error}");
    }
    client.close().await.unwrap();
}

/// Its node is still there, and this runtime has only this thread: nothing but the clock has ended the hold.
#[tokio::test]
async fn guard_past_its_deadline_owns_nothing() {
    let (name, backend, (clock, ahead)) = (fresh_name(), backend(&shared().url()), shifted_clock());
    let client = LockClient::builder(backend.clone()).ttl(LONG).clock(clock).build().await.unwrap();
    let guard = client.lock(name.as_str()).unwrap().acquire().await.unwrap();
    assert!(backend.owned(&guard).is_ok());
    ahead.store(2 * LONG.as_secs(), SeqCst);
    assert_eq!(backend.owned(&guard).unwrap_err().kind(), ErrorKind::Lost);
}
