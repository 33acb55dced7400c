//! Calls of operators that take longer than the ttl of their session.

use std::time::{Duration, Instant};

use lockkit_core::{backend::Backend, limits::TTL_DEFAULT};
use lockkit_testbed::{Direction, Flow, HANG, Proxy};
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};

use crate::common::{backend, fresh_name, name, patient_url, plain, shared};

/// How late each answer is. A server that is silent for three seconds would be left.
const DELAY: Duration = Duration::from_secs(1);

/// So many answers that a session which the first one extends last would end before.
const ANSWERS: usize = 17;

/// What one answer is about: so many directories of a page, or contenders of an inspection.
const DIRECTORIES: usize = 64;
const CONTENDERS: usize = 20;

/// Each answer extends it.
#[tokio::test(flavor = "multi_thread")]
async fn call_may_take_longer_than_the_ttl_of_its_session() {
    let (server, root) = (shared(), format!("/{}", fresh_name()));
    let client = plain(server).await;
    let lasting = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir(&format!("{root}/long"), &lasting).await.unwrap();
    let paths: Vec<String> =
        (1..ANSWERS * DIRECTORIES).map(|number| format!("{root}/d{number:05}")).collect();
    let created: Vec<_> = paths.iter().map(|path| client.create(path, b"", &lasting)).collect();
    for create in created {
        create.await.unwrap();
    }
    let (prefix, ephemeral) =
        (format!("{root}/long/lock-"), CreateMode::EphemeralSequential.with_acls(Acls::anyone_all()));
    let created: Vec<_> =
        (0..ANSWERS * CONTENDERS).map(|_| client.create(&prefix, b"", &ephemeral)).collect();
    for create in created {
        create.await.unwrap();
    }
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    proxy.set(Direction::Replies, Flow::Delay(DELAY));
    let (backend, lock) = (backend(&format!("{}&root={root}", patient_url(&proxy))), name("long"));
    let operator = backend.admin().unwrap();
    let started = Instant::now();
    let asked = async { tokio::join!(operator.list("", None, 9), operator.inspect(&lock)) };
    let (page, seen) = timeout(4 * HANG, asked).await.expect("both end");
    assert_eq!(page.unwrap().locks.len(), 1);
    assert_eq!(seen.unwrap().waiters.len(), ANSWERS * CONTENDERS - 1);
    assert!(started.elapsed() > TTL_DEFAULT, "{:?}", started.elapsed());
}
