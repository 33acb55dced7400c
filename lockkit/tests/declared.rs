//! What each backend declares. The suite leaves out what one does not: if a power or promise were missing by mistake, its
//! cases would be ignored, and nothing would fail.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not recognised as tests")]

use lockkit::{
    backend::{Backend, BackendUrl, Powers, Promises},
    etcd::{EtcdBackend, EtcdConfig},
    file::{FileBackend, FileConfig},
    memory::MemoryServer,
    redis::{RedisBackend, RedisConfig, RedlockBackend, RedlockConfig},
    zk::{ZkBackend, ZkConfig},
};

/// Returns the backend of a URL. No I/O.
fn backend(url: &str) -> Box<dyn Backend> {
    let parsed = BackendUrl::parse(url).unwrap();
    match url.split(':').next().unwrap() {
        "memory" => Box::new(MemoryServer::new().backend()),
        "etcd" => Box::new(EtcdBackend::new(EtcdConfig::from_url(parsed).unwrap())),
        "file" => Box::new(FileBackend::new(FileConfig::from_url(parsed).unwrap())),
        "zk" => Box::new(ZkBackend::new(ZkConfig::from_url(parsed).unwrap())),
        "redlock" => Box::new(RedlockBackend::new(RedlockConfig::from_url(parsed).unwrap())),
        _ => Box::new(RedisBackend::new(RedisConfig::from_url(parsed).unwrap())),
    }
}

/// Returns the names of the powers that these lack.
fn lacking(powers: Powers) -> String {
    let all = [
        ("elections", powers.elections),
        ("leader_watch", powers.leader_watch),
        ("records", powers.records),
        ("pins", powers.pins),
        ("evidence", powers.evidence),
        ("list", powers.list),
        ("break_lock", powers.break_lock),
    ];
    let lacking = all.into_iter().filter(|(_, has)| !has).map(|(name, _)| name);
    lacking.collect::<Vec<_>>().join(" ")
}

/// What etcd lacks with `form=single` or `guard=`, and with `form=rpc`.
const FORMS_LACK: &str = "elections leader_watch records pins";
const RPC_LACKS: &str = "elections leader_watch records pins evidence";

/// Powers as docs/guarantees.md describes them, and the rest as the README's table has it.
#[test]
fn each_backend_declares_what_is_documented() {
    const README: &str = include_str!("../../README.md");
    for (name, url, lacks) in [
        ("memory", "memory:", "evidence"),
        ("file", "file:///a", "leader_watch pins evidence break_lock"),
        ("etcd", "etcd://a", ""),
        ("etcd-single", "etcd://a?form=single", FORMS_LACK),
        ("etcd-guard", "etcd://a?guard=b/", FORMS_LACK),
        ("etcd-rpc", "etcd://a?form=rpc", RPC_LACKS),
        ("redis", "redis://a", ""),
        ("redis-sentinel", "redis+sentinel://a/b", ""),
        ("redis-cluster", "redis+cluster://a", ""),
        ("redlock", "redlock://a,b,c", "leader_watch pins evidence"),
        ("zk", "zk://a", "pins"),
    ] {
        let backend = backend(url);
        let (info, promises) = (backend.info(), backend.promises());
        assert_eq!(lacking(info.powers), lacks, "{url}");
        let Promises { queue, token, loss, failover, .. } = promises;
        let row =
            format!("| {name} | {queue:?} | {:?} | {loss:?} | {token:?} | {failover:?} |", info.lifetime);
        assert!(README.contains(&row), "the README does not have {row:?}");
    }
}
