//! Records while holders change, and while nodes lose their data.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use lockkit_conformance::direct::{HANG, LONG, acquire, name, release, try_acquire, until};
use lockkit_core::{
    Clock, Error, ErrorKind, Result,
    backend::{Backend, Grant, Session},
};

use lockkit_testbed::RedisMasters;

use crate::{
    command,
    redlock::{Masters, backend, cases::open_with_jumps, raw::NODE},
};

const LOCK: &str = "x";

async fn open(url: &str, ttl: Duration) -> Arc<dyn Session> {
    let separator = if url.contains('?') { '&' } else { '?' };
    // For a busy machine.
    let url = format!("{url}{separator}request_timeout=10s");
    backend(&url).unwrap().open_session(ttl, Clock::boot()).await.unwrap()
}

async fn write(session: &Arc<dyn Session>, grant: &Grant, record: &str) -> Result<bool> {
    session.records().unwrap().write(grant, record, LONG).await
}

async fn try_read(session: &Arc<dyn Session>) -> Result<Option<String>> {
    session.records().unwrap().read(&name(LOCK)).await
}

/// Reads, once the session has connected to a node that is back.
async fn read(session: &Arc<dyn Session>) -> Option<String> {
    let start = tokio::time::Instant::now();
    loop {
        match try_read(session).await {
            Ok(record) => return record,
            Err(error) => assert!(start.elapsed() < HANG, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn record_key() -> String {
    format!("lockkit:{{{LOCK}}}:record")
}

async fn record_at(masters: &Masters, node: usize) -> String {
    let get =
        move |nodes: &mut RedisMasters| Ok(nodes.node(node).cli(&["GET", &record_key()])?.text().to_owned());
    masters.with(get).await.unwrap()
}

async fn kill(masters: &Masters, node: usize) {
    masters.with(move |nodes| nodes.node_mut(node).kill()).await.unwrap();
}

async fn restart(masters: &Masters, node: usize) {
    masters.with(move |nodes| nodes.node_mut(node).restart()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn record_outlives_its_session_and_refuses_stale_writers() {
    let masters = Masters::start(3).unwrap();
    let (first, stale, last) = (
        open(&masters.url(), LONG).await,
        open(&masters.url(), LONG).await,
        open(&masters.url(), LONG).await,
    );
    assert_eq!(read(&last).await, None);
    let grant = acquire(&first, &name(LOCK)).await;
    for (number, record) in (1..).zip(["one", "two: ä\n"]) {
        assert!(write(&first, &grant, record).await.unwrap());
        assert_eq!(read(&last).await.as_deref(), Some(record));
        // The number makes nodes refuse a late copy of an earlier write.
        let stored = format!("{}:{number}:{record}", grant.token());
        // One node may be left out, and any of them.
        let mut having = 0;
        for node in 0..3 {
            having += usize::from(record_at(&masters, node).await == stored);
        }
        assert!(having >= 2, "{having} nodes have {stored}");
    }
    release(&first, &grant).await;
    // Where its key was still there, the next holder's would come after it, and after the deletion below.
    until("no node has the lock", async || masters.nodes_with(&name(LOCK)).await.unwrap() == 0).await;
    assert!(!write(&first, &grant, "late").await.unwrap());
    first.close().await.unwrap();
    let closed = [try_read(&first).await.err(), write(&first, &grant, "late").await.err()];
    assert!(closed.iter().all(|error| error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Closed)));
    // The next holder does not renew, and another one follows, which writes nothing yet.
    let old = acquire(&stale, &name(LOCK)).await;
    until("every node has the lock", async || masters.nodes_with(&name(LOCK)).await.unwrap() == 3).await;
    let delete = |nodes: &mut RedisMasters| {
        (0..nodes.len()).try_for_each(|node| nodes.node(node).cli(&["DEL", LOCK]).map(drop))
    };
    masters.with(delete).await.unwrap();
    let newest = acquire(&last, &name(LOCK)).await;
    assert!(!write(&stale, &old, "stale").await.unwrap());
    assert_eq!(read(&last).await.as_deref(), Some("two: ä\n"));
    assert!(write(&last, &newest, "three").await.unwrap());
    assert_eq!(read(&stale).await.as_deref(), Some("three"));
}

#[tokio::test(flavor = "multi_thread")]
async fn record_of_a_majority_is_read_from_every_majority() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), LONG).await;
    let grant = acquire(&session, &name(LOCK)).await;
    // A majority has granted before. A write that overtakes the ask at a node would be refused there.
    until("every node has the lock", async || masters.nodes_with(&name(LOCK)).await.unwrap() == 3).await;
    kill(&masters, 2).await;
    assert!(write(&session, &grant, "one").await.unwrap());
    for (back, down) in [(2, 1), (1, 0)] {
        restart(&masters, back).await;
        kill(&masters, down).await;
        assert_eq!(read(&session).await.as_deref(), Some("one"), "without node {down}");
    }
    kill(&masters, 1).await;
    assert_eq!(try_read(&session).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(write(&session, &grant, "two").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// The longest ttl of a [`Recorder`]: a node that was emptied counts again after that.
const MAX_TTL: Duration = Duration::from_secs(4);

/// How long its records are kept.
const KEEP: Duration = Duration::from_secs(3600);

/// Three nodes, and a session that writes records there.
struct Recorder {
    masters: Masters,
    session: Arc<dyn Session>,
}

impl Recorder {
    async fn start() -> Self {
        let masters = Masters::start_with(3, "?max_ttl=4s").unwrap();
        let session = open(&format!("{}?max_ttl=4s", masters.url()), MAX_TTL).await;
        Self { masters, session }
    }

    /// Writes until a majority has confirmed it.
    async fn confirm(&self, record: &str) {
        until("it is written", async || {
            let grant = acquire(&self.session, &name(LOCK)).await;
            let write = self.session.records().unwrap().write(&grant, record, KEEP);
            let is_written = write.await.unwrap_or_default();
            self.session.release(&grant).await.is_ok() && is_written
        })
        .await;
    }

    /// Empties a node. Waits until heartbeats without holds have brought it back.
    async fn empty(&self, node: usize) {
        self.masters.with(move |nodes| nodes.node_mut(node).wipe()).await.unwrap();
        until("the node counts again", async || {
            self.session.renew(&[]).await;
            self.noted(node, "marker").await.starts_with("ready")
        })
        .await;
    }

    /// Returns what a node has noted about itself.
    async fn noted(&self, node: usize, field: &'static str) -> String {
        let get = move |nodes: &mut RedisMasters| {
            Ok(nodes.node(node).cli(&["HGET", NODE, field])?.text().to_owned())
        };
        self.masters.with(get).await.unwrap()
    }

    /// Writes two records. The first node loses the second one, and the last node gets only the first one, which is
    /// returned as the node has it.
    async fn lose_the_second_record(&self) -> String {
        // A majority is enough for a write, and the last node may be left out of one.
        until("the last node has it too", async || {
            self.confirm("one").await;
            !record_at(&self.masters, 2).await.is_empty()
        })
        .await;
        let first = record_at(&self.masters, 2).await;
        kill(&self.masters, 2).await;
        self.confirm("two").await;
        restart(&self.masters, 2).await;
        self.empty(0).await;
        first
    }

    /// Stops the only node that is sure to have the second record.
    async fn stop_the_second_node(&self, first: String) {
        kill(&self.masters, 1).await;
        // A late copy of the second write may have reached the node when it was back, and is over by now.
        let set =
            move |nodes: &mut RedisMasters| nodes.node(2).cli(&["SET", &record_key(), &first]).map(drop);
        self.masters.with(set).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_session_brings_a_node_back_that_has_lost_its_data() {
    let recorder = Recorder::start().await;
    recorder.empty(0).await;
    // A majority needs the node now.
    kill(&recorder.masters, 2).await;
    acquire(&recorder.session, &name(LOCK)).await;
}

/// Where the clock of a node is slower by one per cent, records last for that much longer.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_comes_back_may_lack_records_for_longer_than_the_others_keep_them() {
    /// Less than one per cent of [`KEEP`], and more than a busy machine needs to bring a node back.
    const MARGIN_US: u64 = 30_000_000;
    let recorder = Recorder::start().await;
    recorder.confirm("one").await;
    recorder.empty(0).await;
    let instant = async |node, field| recorder.noted(node, field).await.parse::<u64>().unwrap_or_default();
    let lost_until = instant(0, "lost_until").await;
    // One of them may be left out of the write.
    let records_until = instant(1, "records_until").await.max(instant(2, "records_until").await);
    assert!(records_until > 0 && lost_until > records_until + MARGIN_US, "{lost_until} and {records_until}");
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_of_data_at_a_node_makes_no_read_return_an_earlier_record() {
    let recorder = Recorder::start().await;
    let first = recorder.lose_the_second_record().await;
    assert_eq!(read(&recorder.session).await.as_deref(), Some("two"));
    recorder.stop_the_second_node(first).await;
    until("the two others answer", async || {
        let error = try_read(&recorder.session).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        error.to_string().contains("have lost their data")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn record_after_a_loss_of_data_is_read_from_every_majority() {
    let recorder = Recorder::start().await;
    let first = recorder.lose_the_second_record().await;
    recorder.stop_the_second_node(first).await;
    recorder.confirm("three").await;
    assert_eq!(read(&recorder.session).await.as_deref(), Some("three"));
    restart(&recorder.masters, 1).await;
    assert_eq!(read(&recorder.session).await.as_deref(), Some("three"));
}

fn assert_too_late(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("expired"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn write_across_a_suspension_is_not_confirmed() {
    let masters = Masters::start(3).unwrap();
    let (session, next_reading) = open_with_jumps(&masters, LONG).await.unwrap();
    let grant = acquire(&session, &name(LOCK)).await;
    assert!(write(&session, &grant, "one").await.unwrap());
    next_reading.store(1, SeqCst);
    assert_too_late(&write(&session, &grant, "two").await.unwrap_err());
}

/// Where the clock of a node is faster by one per cent, the keys may have expired by then.
#[tokio::test(flavor = "multi_thread")]
async fn grant_at_the_end_of_its_ttl_is_refused() {
    let masters = Masters::start(3).unwrap();
    let (session, next_reading) = open_with_jumps(&masters, LONG.mul_f64(0.995)).await.unwrap();
    next_reading.store(1, SeqCst);
    assert_too_late(&try_acquire(&session, &name(LOCK)).await.unwrap_err());
}

/// Redis knows no lifetime of zero, and none beyond the range of its clock.
#[tokio::test(flavor = "multi_thread")]
async fn record_may_be_kept_for_any_time() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), LONG).await;
    let grant = acquire(&session, &name(LOCK)).await;
    for keep in [Duration::ZERO, Duration::MAX] {
        let written = session.records().unwrap().write(&grant, "one", keep).await;
        assert!(written.unwrap(), "{keep:?}");
    }
    assert_eq!(read(&session).await.as_deref(), Some("one"));
    // A script reads a later instant as none, and would forget that the node has a record to lose.
    let until = command(&masters, 0, &["HGET", NODE, "records_until"]).await;
    let until: u64 = until.parse().unwrap();
    assert!((1..1 << 53).contains(&until), "{until}");
}
