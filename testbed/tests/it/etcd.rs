//! An etcd server: isolation, restart, pause, authentication, and its end with the test.

use std::{
    fs,
    panic::catch_unwind,
    path::PathBuf,
    time::{Duration, Instant},
};

use lockkit_testbed::Etcd;

use crate::process::{pid_in, state_of, testbed};

/// Generous bound against hangs.
const GONE_MAX: Duration = Duration::from_secs(20);

#[test]
fn servers_share_nothing() {
    let (one, other) = (Etcd::start().unwrap(), Etcd::start().unwrap());
    assert_ne!(one.endpoint(), other.endpoint());
    one.put("a", "1").unwrap();
    assert_eq!(one.keys("").unwrap(), ["a"]);
    assert_eq!(other.keys("").unwrap(), [""; 0]);
    assert_eq!(one.metrics().unwrap().grpc_handled("Put"), 1);
    assert!(one.metrics().unwrap().proposals() > 0);
    assert!(one.delete("a").unwrap());
    assert!(!one.delete("a").unwrap());
}

#[test]
fn data_address_and_port_survive_a_restart() {
    let mut etcd = Etcd::start().unwrap();
    let (endpoint, pid) = (etcd.endpoint(), etcd.pid().unwrap());
    etcd.put("a", "1").unwrap();
    etcd.kill().unwrap();
    assert!(etcd.keys("").is_err());
    assert_eq!(etcd.pid(), None);
    etcd.restart().unwrap();
    assert_eq!(etcd.endpoint(), endpoint);
    assert_ne!(etcd.pid(), Some(pid));
    assert_eq!(etcd.keys("").unwrap(), ["a"]);
}

#[test]
fn paused_server_answers_again_after_resume() {
    let etcd = Etcd::start().unwrap();
    etcd.pause().unwrap();
    assert_eq!(state_of(etcd.pid().unwrap()), Some('T'));
    etcd.resume().unwrap();
    assert_eq!(etcd.keys("").unwrap(), [""; 0]);
}

#[test]
fn leases_keys_and_alarms_are_cleared_once_no_client_is_left() {
    let etcd = Etcd::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let watch = runtime.block_on(async {
        let mut client = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
        let lease = client.lease_grant(600, None).await.unwrap().id();
        let leased = etcd_client::PutOptions::new().with_lease(lease);
        client.put("leased", "", Some(leased)).await.unwrap();
        client.watch("key", None).await.unwrap()
    });
    etcd.put("key", "").unwrap();
    assert!(etcd.clear().is_err(), "a client still watches");
    assert_eq!((etcd.keys("").unwrap().len(), etcd.leases().unwrap()), (2, 1));
    etcd.set_no_space(true).unwrap();
    drop((watch, runtime));
    etcd.clear().unwrap();
    assert_eq!((etcd.keys("").unwrap(), etcd.leases().unwrap()), (Vec::new(), 0));
    assert_eq!(etcd.metrics().unwrap().streams(), 0);
    etcd.put("a", "1").unwrap();
}

#[test]
fn testbed_logs_in_once_authentication_is_on() {
    let mut etcd = Etcd::start().unwrap();
    etcd.enable_auth("app", "secret").unwrap();
    etcd.put("a", "1").unwrap();
    assert_eq!(etcd.keys("").unwrap(), ["a"]);
}

#[test]
fn server_of_a_panicking_test_ends() {
    let panic = catch_unwind(|| {
        let etcd = Etcd::start().unwrap();
        std::panic::panic_any(etcd.pid().unwrap());
    });
    let pid = *panic.unwrap_err().downcast::<u32>().unwrap();
    assert_eq!(state_of(pid), None);
}

#[test]
fn server_and_folder_of_a_killed_process_are_removed() {
    let (mut process, line) = testbed("etcd");
    let pid = pid_in(&line);
    let folder = folder_of(pid);
    assert!(folder.is_dir());
    process.kill().unwrap();
    process.wait().unwrap();
    let started = Instant::now();
    while state_of(pid).is_some() || folder.exists() {
        assert!(started.elapsed() < GONE_MAX, "process {pid} or folder {} is still there", folder.display());
        std::thread::yield_now();
    }
}

/// The temporary folder of a server, from its command line.
fn folder_of(pid: u32) -> PathBuf {
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    let data = command.split('\0').find_map(|argument| argument.strip_prefix("--data-dir=")).unwrap();
    PathBuf::from(data).parent().unwrap().to_owned()
}
