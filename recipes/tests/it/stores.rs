//! The stores of this build. Each server is started once, for all tests.

use std::{thread, time::Instant};

#[cfg(feature = "redis")]
use lockkit_testbed::Redis;
use tempfile::TempDir;

/// A store, and what keeps it.
pub(crate) struct Store {
    pub(crate) name: &'static str,
    /// Without options.
    pub(crate) url: String,
    _folder: Option<TempDir>,
}

/// Locks within one process only, so none between the processes of a test.
pub(crate) const NO_LOCK: &str = "memory:";

impl Store {
    /// Returns lock files in a folder of their own.
    pub(crate) fn files() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { name: "file", url: format!("file://{}", folder.path().display()), _folder: Some(folder) }
    }

    #[cfg(any(feature = "etcd", feature = "redis", feature = "zk"))]
    fn server(name: &'static str, url: String) -> Self {
        Self { name, url, _folder: None }
    }
}

/// Runs a test on lock files and on all servers whose features are on, side by side. Prints what took how long.
pub(crate) fn on_each(test: impl Fn(&Store) + Sync) {
    thread::scope(|scope| {
        for store in all() {
            let test = &test;
            scope.spawn(move || {
                let start = Instant::now();
                test(&store);
                println!("{}: {:?}", store.name, start.elapsed());
            });
        }
    });
}

fn all() -> Vec<Store> {
    let files = [Store::files()].into_iter();
    #[cfg(feature = "etcd")]
    let files = files.chain([Store::server("etcd", etcd().url())]);
    #[cfg(feature = "redis")]
    let files = files.chain([Store::server("redis", redis().url())]);
    #[cfg(feature = "zk")]
    let files = files.chain([Store::server("zk", zookeeper().url())]);
    files.collect()
}

#[cfg(feature = "etcd")]
pub(crate) fn etcd() -> &'static lockkit_testbed::Etcd {
    static SERVER: std::sync::LazyLock<lockkit_testbed::Etcd> =
        std::sync::LazyLock::new(|| lockkit_testbed::Etcd::start().unwrap());
    &SERVER
}

#[cfg(feature = "redis")]
pub(crate) fn redis() -> &'static Redis {
    static SERVER: std::sync::LazyLock<Redis> = std::sync::LazyLock::new(|| Redis::start().unwrap());
    &SERVER
}

#[cfg(feature = "zk")]
pub(crate) fn zookeeper() -> &'static lockkit_testbed::ZooKeeper {
    static SERVER: std::sync::LazyLock<lockkit_testbed::ZooKeeper> =
        std::sync::LazyLock::new(|| lockkit_testbed::ZooKeeper::start().unwrap());
    &SERVER
}
