//! What each backend declares. The suite leaves out what one does not: if a power or promise were missing by mistake, its
//! cases would be ignored, and nothing would fail.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not recognised as tests")]

use lockkit::{
    backend::{Backend, BackendUrl, Powers},
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

/// Powers as docs/guarantees.md describes them, and the columns of the README's table.
#[test]
fn each_backend_declares_its_powers_and_promises() {
    for (url, lacks, declares) in [
        ("memory:", "evidence", "Fifo Session SessionPushed Process NoFailover"),
        (
            "file:///a",
            "leader_watch pins evidence break_lock",
            "Unordered Process Heartbeat ClockFloor NoFailover",
        ),
        ("etcd://a", "", "Fifo Session SessionPushed History Nothing"),
        ("etcd://a?form=single", FORMS_LACK, "Unordered Session SessionPushed History Nothing"),
        ("etcd://a?guard=b/", FORMS_LACK, "Fifo Session SessionPushed History Nothing"),
        ("etcd://a?form=rpc", RPC_LACKS, "Unordered Hold Heartbeat History Nothing"),
        ("redis://a", "", "Fifo Hold Heartbeat ClockFloor Unreplicated"),
        ("redis+sentinel://a/b", "", "Fifo Hold Heartbeat ClockFloor Unreplicated"),
        ("redis+cluster://a", "", "Fifo Hold Heartbeat ClockFloor Unreplicated"),
        ("redlock://a,b,c", "leader_watch pins evidence", "Unordered Hold Heartbeat ClockFloor Nothing"),
        ("zk://a", "pins", "Fifo Session SessionPushed History Nothing"),
    ] {
        let backend = backend(url);
        let (info, promises) = (backend.info(), backend.promises());
        assert_eq!(lacking(info.powers), lacks, "{url}");
        let declared = format!(
            "{:?} {:?} {:?} {:?} {:?}",
            promises.queue, info.lifetime, promises.loss, promises.token, promises.failover
        );
        assert_eq!(declared, declares, "{url}");
    }
}
