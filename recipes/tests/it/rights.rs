//! The commands of docs/operations.md that give a user its rights, run on real servers: with these rights, all of the
//! API works below the prefix, and nothing works elsewhere.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use lockkit::{ErrorKind, LockClient};

use crate::stores;

const DOCUMENT: &str = include_str!("../../../docs/operations.md");

/// Returns the commands for one store.
fn commands(store: &str) -> String {
    let start = format!("```sh rights {store}\n");
    let (_, rest) = DOCUMENT.split_once(&start).unwrap_or_else(|| panic!("no {start}"));
    rest.split_once("```").unwrap().0.to_owned()
}

/// Runs commands of the document, in which the client program of the store is this one. Returns what they print.
fn run(commands: &str, program: &str, stand_in: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(program);
    fs::write(&file, format!("#!/bin/sh\n{stand_in}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-euc", commands]).env("PATH", path).current_dir(folder.path()).stdin(Stdio::null());
    let output = shell.output().unwrap();
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{commands}\n{printed:?}");
    printed.concat()
}

/// A lock, work once per period, and an election if the store has it for this user.
async fn use_all_rights(client: &LockClient) {
    let lock = client.lock("orders/42").unwrap();
    let guard = lock.acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap().release().await.unwrap() }
    });
    while client.inspect("orders/42").await.unwrap().waiters.is_empty()
        && client.promises().queue == lockkit::backend::QueueKind::Fifo
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await.unwrap();
    waiter.await.unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    let nightly = client.once_per("invoices", day).unwrap();
    assert!(nightly.run(async |_guard| ()).await.unwrap().is_some());
    let election = client.election("scheduler").unwrap();
    let leadership = election.campaign("me").await.unwrap();
    assert_eq!(election.leader().await.unwrap().unwrap().value, "me");
    leadership.proclaim("still me").await.unwrap();
    leadership.resign().await.unwrap();
    client.close().await.unwrap();
}

/// Tries a lock elsewhere in the store, or as nobody.
async fn is_denied(url: &str) {
    let outcome = async {
        let client = lockkit::connect(url).await?;
        let guard = client.lock("orders/42")?.try_acquire().await.map(drop);
        client.close().await.and(guard)
    };
    assert_eq!(outcome.await.unwrap_err().kind(), ErrorKind::Denied, "{url}");
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread")]
async fn rights_on_etcd_are_enough_and_not_more() {
    // Its own server: with authentication, all other clients would be refused.
    let mut etcd = lockkit_testbed::Etcd::start().unwrap();
    etcd.enable_auth("root", "hunter2").unwrap();
    for line in run(&commands("etcd"), "etcdctl", "echo \"$@\"").lines() {
        etcd.etcdctl(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let url = format!("etcd://app:PASSWORD@{}", etcd.endpoint());
    use_all_rights(&lockkit::connect(format!("{url}/app/locks")).await.unwrap()).await;
    is_denied(&format!("{url}/app/other")).await;
}

#[cfg(feature = "zk")]
#[tokio::test(flavor = "multi_thread")]
async fn rights_on_zookeeper_are_enough_and_not_more() {
    let server = stores::zookeeper();
    let shell = server.shell();
    let words = [shell.get_program()].into_iter().chain(shell.get_args());
    let words = words.map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>();
    run(&commands("zookeeper"), "zkCli.sh", &format!("exec {}", words.join(" ")));
    let endpoint = server.endpoint();
    use_all_rights(&lockkit::connect(format!("zk://app:PASSWORD@{endpoint}/app")).await.unwrap()).await;
    is_denied(&format!("zk://{endpoint}/app")).await;
    is_denied(&format!("zk://{endpoint}/app?root=/other")).await;
}

/// Returns a `redis-cli` that is connected to this server.
#[cfg(feature = "redis")]
fn redis_cli(endpoint: &str) -> String {
    let (host, port) = endpoint.split_once(':').unwrap();
    let program = lockkit_testbed::find_program("redis-cli", "redis-tools").unwrap();
    format!("exec {} -e -h {host} -p {port} \"$@\"", Path::new(&program).display())
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn rights_on_redis_are_enough_and_not_more() {
    let endpoint = stores::redis().endpoint();
    run(&commands("redis"), "redis-cli", &redis_cli(&endpoint));
    let url = format!("redis://app:PASSWORD@{endpoint}");
    use_all_rights(&lockkit::connect(format!("{url}?prefix=app:")).await.unwrap()).await;
    is_denied(&format!("{url}?prefix=other:")).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn rights_on_redlock_are_enough_and_not_more() {
    use lockkit::redis::{RedisConfig, RedlockConfig, init};
    let masters = lockkit_testbed::RedisMasters::start(3).unwrap();
    let endpoints = masters.endpoints();
    for endpoint in endpoints.split(',') {
        run(&commands("redlock"), "redis-cli", &redis_cli(endpoint));
    }
    let nodes = RedisConfig::new(endpoints.split(',')).unwrap().user("app", "PASSWORD").prefix("app:");
    init(&RedlockConfig::new(nodes).unwrap()).await.unwrap();
    let url = format!("redlock://app:PASSWORD@{endpoints}");
    use_all_rights(&lockkit::connect(format!("{url}?prefix=app:")).await.unwrap()).await;
    is_denied(&format!("{url}?prefix=other:")).await;
}
