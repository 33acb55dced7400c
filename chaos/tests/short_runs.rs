//! A short run on each store, with a seed that is always the same: what takes 20 minutes to be rare is left to
//! `cargo xtask chaos`.
#![cfg(test)]

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// How long the faults last together: 20 seconds.
const MINUTES: &str = "0.33";

/// Few, as other tests run at the same time.
const CLIENTS: &str = "3";

/// Makes a run, and shows what it says of itself when it was not good.
#[track_caller]
fn is_survived(backend: &str, seed: u64) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos");
    let mut run = Command::new(env!("CARGO_BIN_EXE_lockkit-chaos"))
        .args(["--backend", backend, "--minutes", MINUTES, "--clients", CLIENTS, "--seed", &seed.to_string()])
        .arg("--folder")
        .arg(&folder)
        // Its end is that of the run: no server outlives a test that is killed.
        .arg("--end-with-input")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = run.stdin.take();
    let output = run.wait_with_output().unwrap();
    drop(input);
    let [said, complained] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{said}{complained}");
    assert!(output.status.success(), "{backend}, seed {seed}: {}", output.status);
    for extension in ["json", "svg"] {
        assert!(folder.join(format!("{backend}-{seed}.{extension}")).metadata().unwrap().len() > 0);
    }
}

#[test]
fn etcd_survives_a_short_run() {
    is_survived("etcd", 3);
}

#[test]
fn zookeeper_survives_a_short_run() {
    is_survived("zk", 3);
}

#[test]
fn redis_survives_a_short_run() {
    is_survived("redis", 3);
}

#[test]
fn redis_with_sentinels_survives_a_short_run() {
    is_survived("redis-sentinel", 3);
}

#[test]
fn redis_cluster_survives_a_short_run() {
    is_survived("redis-cluster", 3);
}

#[test]
fn redlock_survives_a_short_run() {
    is_survived("redlock", 3);
}

#[test]
fn files_survive_a_short_run() {
    is_survived("file", 3);
}
