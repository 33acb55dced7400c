//! Warnings about nodes that may lose acknowledged writes.

use std::{
    cell::RefCell,
    io::Write,
    sync::{Arc, Mutex, Once},
    time::{Duration, Instant},
};

use lockkit_core::{Clock, backend::Backend};
use lockkit_redis::init;
use lockkit_testbed::{Redis, RedisMasters};
use tracing::Level;

use crate::redlock::{backend, config, raw::NODE};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(60);

/// The log of a connect, until the `INFO` of each of three nodes was requested.
fn log(masters: &RedisMasters, login: &str) -> String {
    let url = format!("redlock://{login}{}", masters.endpoints());
    log_of(
        &url,
        async || {
            init(&config(&url).unwrap()).await.unwrap();
        },
        |log| log.lines().filter(|line| is_info_result(line)).count() == 3,
    )
}

/// The log from before `prepare` and a connect, until it is enough.
fn log_of(url: &str, prepare: impl AsyncFnOnce(), is_enough: impl Fn(&str) -> bool) -> String {
    // One subscriber for the whole program: tracing caches the interest of call sites, and a call site first reached by
    // a thread without a subscriber would stay disabled.
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        tracing_subscriber::fmt()
            .with_writer(|| LOG.with_borrow(Log::clone))
            .with_ansi(false)
            .with_max_level(Level::DEBUG)
            .init();
    });
    let log = Log::default();
    LOG.set(log.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connect = async {
        prepare().await;
        let session = backend(url).unwrap().open_session(HANG, Clock::boot()).await.unwrap();
        let start = Instant::now();
        while !is_enough(&log.text()) {
            assert!(start.elapsed() < HANG, "{}", log.text());
            tokio::time::sleep(Duration::from_millis(5)).await;
            // Finds what a node has replied too late to be seen when the session began.
            session.renew(&[]).await;
        }
        drop(session);
    };
    runtime.block_on(connect);
    log.text()
}

fn is_info_result(line: &str) -> bool {
    line.contains("INFO was read") || line.contains("cannot read INFO")
}

fn warnings(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains(" WARN ")).collect()
}

#[test]
fn nodes_without_append_only_file_are_warned_about() {
    let durable = RedisMasters::start(3).unwrap();
    assert_eq!(warnings(&log(&durable, "")), [""; 0]);
    let forgetful = RedisMasters::start_with(3, &["--appendonly", "no"]).unwrap();
    let text = log(&forgetful, "");
    assert_eq!(warnings(&text).len(), 3, "{text}");
    for node in 0..3 {
        let name = forgetful.node(node).endpoint();
        let names = |line: &&str| line.contains("append-only") && line.contains(&name);
        assert!(warnings(&text).iter().any(names), "{text}");
    }
}

#[test]
fn half_set_up_node_is_reported_as_half_set_up() {
    let masters = RedisMasters::start(3).unwrap();
    for (node, phase) in ["ready", "ready", "preparing"].iter().enumerate() {
        let marker = format!("{phase} 60000 5f0c {}/3", node + 1);
        masters.node(node).cli(&["HSET", NODE, "marker", &marker]).unwrap();
    }
    let url = format!("redlock://{}", masters.endpoints());
    let text = log_of(&url, async || {}, |log| log.contains("this node does not count"));
    let warning = warnings(&text).into_iter().find(|line| line.contains("this node does not count")).unwrap();
    assert!(warning.contains("lockkit init") && warning.contains(&masters.node(2).endpoint()), "{warning}");
}

#[test]
fn node_with_a_replica_is_warned_about() {
    let masters = RedisMasters::start(3).unwrap();
    let replica = Redis::start().unwrap();
    let node = masters.node(1).endpoint();
    let (host, port) = node.split_once(':').unwrap();
    replica.cli(&["REPLICAOF", host, port]).unwrap();
    let start = Instant::now();
    while !replica.is_replicating().unwrap() {
        assert!(start.elapsed() < HANG, "the replica does not connect");
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = log(&masters, "");
    let warned = warnings(&text);
    assert!(warned.len() == 1 && warned[0].contains("replica") && warned[0].contains(&node), "{text}");
}

#[test]
fn nodes_that_may_evict_are_warned_about() {
    let masters = RedisMasters::start_with(3, &["--maxmemory-policy", "allkeys-lru"]).unwrap();
    let text = log(&masters, "");
    assert_eq!(warnings(&text).iter().filter(|line| line.contains("allkeys-lru")).count(), 3, "{text}");
}

#[test]
fn user_without_the_info_right_can_lock() {
    let rights = crate::redlock::rights::RIGHTS.replace("+info", "");
    let user = crate::redlock::rights::user(&rights);
    let options = [&["--appendonly", "no", "--user"], &*user].concat();
    let masters = RedisMasters::start_with(3, &options).unwrap();
    let text = log(&masters, &format!("{}@", crate::redlock::rights::LOGIN));
    assert_eq!(warnings(&text), [""; 0]);
    assert_eq!(text.lines().filter(|line| line.contains("cannot read INFO")).count(), 3, "{text}");
}

thread_local! {
    /// Per test: each test and its runtime use one thread.
    static LOG: RefCell<Log> = RefCell::default();
}

/// What was logged.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
