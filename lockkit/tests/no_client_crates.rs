//! What a user compiles: without features no client of any store, and with one only its own.
#![allow(clippy::expect_used, reason = "helpers of tests are not recognised as tests")]

use std::{collections::BTreeSet, process::Command};

/// Crates that talk to stores, and what only they drag in.
const CLIENT_CRATES: [&str; 6] = ["tonic", "hyper", "zookeeper-client", "redis", "rustls", "openssl-sys"];

/// Most crates of a program that uses no store with a server, `lockkit` included.
const CRATES_MAX: usize = 45;

/// The crates that are compiled into a program that uses `lockkit` with these features.
fn crates(features: &str) -> BTreeSet<String> {
    tree("normal", features)
}

/// The crates at the end of these edges.
fn tree(edges: &str, features: &str) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--package", "lockkit", "--edges", edges, "--prefix", "none"])
        .args(["--format", "{p}", "--no-default-features", "--features", features])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8(tree.stdout).expect("names of crates are ASCII");
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn client_crates(crates: &BTreeSet<String>) -> Vec<&str> {
    CLIENT_CRATES.into_iter().filter(|name| crates.contains(*name)).collect()
}

#[test]
fn without_features_there_is_no_client_crate() {
    let found = crates("");
    assert!(found.contains("lockkit-core") && found.contains("tokio"), "{found:?}");
    assert_eq!(client_crates(&found), [""; 0]);
    assert!(!found.contains("lockkit-file"));
    assert!(found.len() <= CRATES_MAX, "{}: {found:?}", found.len());
}

#[test]
fn files_bring_none_either() {
    let found = crates("file");
    assert!(found.contains("lockkit-file"), "{found:?}");
    assert_eq!(client_crates(&found), [""; 0]);
}

#[test]
fn etcd_brings_its_own_client_and_no_other() {
    let found = crates("etcd");
    let brought = client_crates(&found);
    assert_eq!(brought, ["tonic", "hyper"]);
}

/// `cargo xtask package` shows it for the packages.
#[test]
fn no_feature_needs_protoc() {
    let built = tree("normal,build", "etcd,file,redis,testing,tls,zk,zk-sasl");
    assert!(built.contains("tonic") && built.contains("cc"), "{built:?}");
    let runs_protoc: Vec<_> = built.iter().filter(|name| name.starts_with("prost-build")).collect();
    assert!(runs_protoc.is_empty(), "{runs_protoc:?}");
}

#[test]
fn redis_brings_its_own_client_and_no_other() {
    let found = crates("redis");
    assert_eq!(client_crates(&found), ["redis"]);
}
