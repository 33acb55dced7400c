//! The smallest program for each backend.

use crate::processes::run;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zk"))]
use crate::stores;

/// Checks that another client finds the lock busy while it is held, and free afterwards.
fn check(lines: &[String]) {
    for line in ["BUSY true", "FREE true"] {
        assert!(lines.iter().any(|found| found == line), "no {line}: {lines:?}");
    }
    let token =
        lines.iter().find_map(|line| line.strip_prefix("HELD ")?.split(' ').next()?.parse::<u64>().ok());
    assert!(token.is_some_and(|token| token > 0), "{lines:?}");
}

#[cfg(feature = "etcd")]
#[test]
fn with_etcd() {
    check(&run("with_etcd", "", &[&stores::etcd().endpoint()]));
}

#[test]
fn with_files() {
    let folder = tempfile::tempdir().unwrap();
    check(&run("with_files", "", &[folder.path().join("locks").to_str().unwrap()]));
}

#[test]
fn with_memory() {
    let lines = run("with_memory", "", &[]);
    check(&lines);
    assert!(lines.contains(&"ANOTHER true".to_owned()), "{lines:?}");
}

#[cfg(feature = "redis")]
#[test]
fn with_redis() {
    check(&run("with_redis", "", &[&stores::redis().endpoint()]));
}

#[cfg(feature = "redis")]
#[test]
fn with_redlock() {
    // Its own servers: they are set up once.
    let masters = lockkit_testbed::RedisMasters::start(3).unwrap();
    let endpoints = masters.endpoints();
    for set_up in ["SET UP Done", "SET UP Before"] {
        let lines = run("with_redlock", "", &[&endpoints]);
        check(&lines);
        assert_eq!(lines[0], set_up, "{lines:?}");
    }
}

#[cfg(feature = "zk")]
#[test]
fn with_zookeeper() {
    let lines = run("with_zookeeper", "", &[&stores::zookeeper().endpoint()]);
    check(&lines);
    assert_eq!(lines[0], "TTL 10s", "{lines:?}");
}
