//! A short run of all rows. Its figures mean nothing, but every row must have some.
#![cfg(test)]

use std::time::Duration;

use lockkit_bench::{Plan, Workload};

async fn every_row_is_measured(store: &str, others: &'static str, server: &str) {
    let folder = std::env::temp_dir().join(format!("lockkit-bench-{store}-{}", std::process::id()));
    let plan = Plan { rounds: 1, each: Duration::from_millis(200) };
    let report = lockkit_bench::run(store, plan, &folder).await.unwrap();
    let found: Vec<_> = report.comparisons().iter().map(|row| (row.workload, row.row)).collect();
    let rows = ["raw", "lockkit", others];
    let expected: Vec<_> =
        Workload::ALL.into_iter().flat_map(|workload| rows.map(|row| (workload, row))).collect();
    assert_eq!(found.len(), expected.len());
    assert!(expected.iter().all(|row| found.contains(row)), "{found:?}");
    assert!(report.comparisons().iter().all(|row| row.ratio.median > 0.0));
    let text = std::fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(rows.iter().all(|row| text.contains(row)) && text.contains(server), "{text}");
    let json = std::fs::read_to_string(folder.join("report.json")).unwrap();
    assert!(json.contains("handoff"), "{json}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_of_zookeeper_is_measured() {
    every_row_is_measured("zk", "zookeeper-client's lock", "ZooKeeper 3.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_of_redis_is_measured() {
    every_row_is_measured("redis", "rslock", "Redis ").await;
}
