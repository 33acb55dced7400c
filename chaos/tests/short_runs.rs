//! A short run on each store, always with the same seed. Rare events are left to longer runs of `cargo xtask chaos`.
#![cfg(test)]

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// Total duration of the faults: 20 seconds.
const MINUTES: &str = "0.33";

/// Few clients, because other tests run at the same time.
const CLIENTS: &str = "3";

/// Asserts that a run passes. Prints its output.
#[track_caller]
fn assert_run_passes(backend: &str, seed: u64) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos");
    let mut run = Command::new(env!("CARGO_BIN_EXE_lockkit-chaos"))
        .args(["--backend", backend, "--minutes", MINUTES, "--clients", CLIENTS, "--seed", &seed.to_string()])
        .arg("--folder")
        .arg(&folder)
        // The run ends when this pipe closes: no server outlives a killed test.
        .arg("--end-with-input")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = run.stdin.take();
    let output = run.wait_with_output().unwrap();
    drop(input);
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{stdout}{stderr}");
    assert!(output.status.success(), "{backend}, seed {seed}: {}", output.status);
    for extension in ["json", "svg"] {
        assert!(folder.join(format!("{backend}-{seed}.{extension}")).metadata().unwrap().len() > 0);
    }
}

#[test]
fn etcd_survives_a_short_run() {
    assert_run_passes("etcd", 3);
}

#[test]
fn zookeeper_survives_a_short_run() {
    assert_run_passes("zk", 3);
}

#[test]
fn redis_survives_a_short_run() {
    assert_run_passes("redis", 3);
}

#[test]
fn redis_with_sentinels_survives_a_short_run() {
    assert_run_passes("redis-sentinel", 3);
}

#[test]
fn redis_cluster_survives_a_short_run() {
    assert_run_passes("redis-cluster", 3);
}

#[test]
fn redlock_survives_a_short_run() {
    assert_run_passes("redlock", 3);
}

#[test]
fn files_survive_a_short_run() {
    assert_run_passes("file", 3);
}
