//! A run with the shortest plan. Its figures mean nothing, but every row must have some.
#![cfg(test)]

use std::{fs, process::Command};

use serde_json::Value;

/// The rows of each backend without those of peers.
const ROWS: [(&str, &[(&str, &str)]); 3] = [
    ("redis", &[("W1", "raw"), ("W1", "lockkit"), ("W3", "raw push"), ("W3", "lockkit")]),
    ("memory", &[("W1", "raw"), ("W1", "lockkit"), ("W3", "raw"), ("W3", "lockkit")]),
    ("file", &[("W1", "raw"), ("W1", "lockkit"), ("W3", "raw"), ("W3", "lockkit")]),
];

#[test]
fn every_row_is_measured_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_lockkit-bench");
    let backends = ROWS.map(|(backend, _)| backend);
    let output = Command::new(program)
        .args(["--quick", "--seconds", "0.3", "--workload", "W1", "W3", "W5", "--backend"])
        .args(backends)
        .arg("--folder")
        .arg(folder.path())
        // No peers.
        .arg("--peers")
        .arg(folder.path())
        .output()
        .unwrap();
    let [printed, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{printed}\n{errors}");
    assert!(printed.contains("lockkit on all backends"), "{printed}");

    let json = fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    for ((backend, expected), found) in ROWS.iter().zip(report["backends"].as_array().unwrap()) {
        assert_eq!(found["backend"], *backend);
        for (workload, name) in *expected {
            check_row(found, workload, name);
        }
        assert!(found["reentry"][0]["pair_ns"].as_f64().unwrap() > 0.0, "{found}");
    }

    let text = fs::read_to_string(folder.path().join("report.md")).unwrap();
    for part in [
        "| backend ",
        "## redis",
        "### W3: 8 clients",
        "Redis ",
        "machine: ",
        "in order",
        "divided by the bare requests",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    for plot in ["clients.svg", "clients-redis.svg", "latency-file.svg", "contended-memory.svg"] {
        let svg = fs::read_to_string(folder.path().join(plot)).unwrap();
        assert!(text.contains(plot) && svg.contains("polyline"), "{plot}: {svg}");
    }
}

/// A row of the workload's own size has one run, with what its kind of server reports.
fn check_row(report: &Value, workload: &str, name: &str) {
    let size = if workload == "W3" { 8 } else { 1 };
    let is_it = |row: &&Value| row["workload"] == workload && row["name"] == name && row["size"] == size;
    let row = report["rows"].as_array().unwrap().iter().find(is_it);
    let run = &row.unwrap_or_else(|| panic!("no {name} of {workload} in {report}"))["runs"][0];
    assert!(run["per_second"].as_f64().unwrap() > 0.0, "{run}");
    assert!(run["pair"]["p50"].as_u64() <= run["pair"]["p99"].as_u64(), "{run}");
    assert_eq!(run["violations"], 0, "{run}");
    assert_eq!(run["handoff"].is_null(), workload == "W1", "{run}");
    let requests = &run["server"]["requests"];
    match report["backend"].as_str() {
        // An acquire and a release; more when the lock is contended.
        Some("redis") => assert!(requests.as_f64().unwrap() > 1.0, "{run}"),
        _ => assert!(requests.is_null(), "{run}"),
    }
}
