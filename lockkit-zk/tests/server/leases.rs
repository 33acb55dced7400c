//! From when a lease counts: each request through the leader proves it from its sending, and no later.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{
    Clock, ErrorKind,
    backend::{Backend, Renewal, Session},
};
use lockkit_testbed::Proxy;

use crate::{
    common::{
        LONG, acquire, backend, bounded, fresh_name, heartbeat, is_renewed, node, patient_url, release,
        shared, shifted_clock, until,
    },
    elections::{lead, proclaim},
};

/// A quarter of the ttl: the margin without a configured tick.
const QUARTER: Duration = Duration::from_secs(LONG.as_secs() / 4);

/// A session whose requests a proxy holds, and its clock.
struct LateSession {
    proxy: Proxy,
    session: Arc<dyn Session>,
    clock: Clock,
    ahead: Arc<AtomicU64>,
}

impl LateSession {
    async fn new(form: &str) -> Self {
        let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
        let (clock, ahead) = shifted_clock();
        let url = format!("{}&form={form}", patient_url(&proxy));
        let session = backend(&url).open_session(LONG, clock.clone()).await.unwrap();
        Self { proxy, session, clock, ahead }
    }

    /// Moves the clock to this many quarters of the ttl after the open.
    fn after(&self, quarters: u32) {
        self.ahead.store((quarters * QUARTER).as_secs(), SeqCst);
    }

    /// Makes a request that is under way for a quarter of the ttl: the proxy holds all from the one with these bytes.
    /// Its answer must prove the lease from its sending.
    async fn proves_from_its_sending<T>(&self, bytes: &[u8], request: impl Future<Output = T>) -> T {
        self.after(1);
        let asked = self.clock.now();
        self.proxy.hold_requests_from(bytes);
        let delay = async {
            until("it is under way", async || self.proxy.holds_bytes(bytes)).await;
            self.after(2);
            let still_held = self.clock.now();
            self.proxy.pass();
            still_held
        };
        let (answer, still_held) = tokio::join!(request, delay);
        self.after(3);
        let armed_at = acquire(&self.session, &fresh_name()).await.armed_at();
        assert!(armed_at >= asked, "{:?} early: the answer does not count", asked.since(armed_at));
        assert!(armed_at < still_held, "{:?} late", armed_at.since(still_held));
        answer
    }
}

/// The last report of the session may be from any moment while they were under way.
#[tokio::test(flavor = "multi_thread")]
async fn lease_counts_from_the_sending_of_each_write() {
    for write in ["release", "proclaim", "record"] {
        let (late, name) = (LateSession::new("curator").await, fresh_name());
        let session = &late.session;
        let held = lead(session, &name, "early").await;
        match write {
            "release" => {
                late.proves_from_its_sending(node(&name).as_bytes(), release(session, &held)).await;
            }
            "proclaim" => {
                let written = proclaim(session, &held, "late value", 2);
                assert!(late.proves_from_its_sending(b"late value", written).await);
            }
            _ => {
                // The directory of the records is made.
                assert!(bounded(session.records().unwrap().write(&held, "early", LONG)).await.unwrap());
                let written = session.records().unwrap().write(&held, "late value", LONG);
                assert!(late.proves_from_its_sending(b"late value", bounded(written)).await.unwrap());
            }
        }
    }
}

/// A release of it deletes in a transaction of its own kind, and after a lost reply it writes the client's own node.
#[tokio::test(flavor = "multi_thread")]
async fn lease_counts_from_the_sending_of_each_write_for_a_single_node() {
    for write in ["create", "release", "repeated release"] {
        let (late, name) = (LateSession::new("single").await, fresh_name());
        let (session, path) = (&late.session, node(&name));
        match write {
            "create" => {
                late.proves_from_its_sending(path.as_bytes(), acquire(session, &name)).await;
            }
            "release" => {
                let held = acquire(session, &name).await;
                // A path, and "any version"; a read of that path ends otherwise.
                let deletion = [path.as_bytes(), &(-1_i32).to_be_bytes()].concat();
                late.proves_from_its_sending(&deletion, release(session, &held)).await;
            }
            _ => {
                let held = acquire(session, &name).await;
                // The replies to the check and to the read come first.
                late.proxy.swallow_reply(3);
                let error = bounded(session.release(&held)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                late.proves_from_its_sending(b"/:clients/", release(session, &held)).await;
            }
        }
    }
}

/// Otherwise every hold would be believed for a tenth of its ttl less.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_reports_what_its_own_answer_proves() {
    let late = LateSession::new("curator").await;
    late.after(1);
    let asked = late.clock.now();
    assert!(is_renewed(&heartbeat(&late.session, &[]).await.session));
    late.after(3);
    match heartbeat(&late.session, &[]).await.session {
        Renewal::Renewed { armed_at } => {
            assert!(armed_at >= asked, "{:?} early: the one before counts", asked.since(armed_at));
        }
        other => panic!("{other:?}"),
    }
}
