//! The conformance suite on a real ZooKeeper, and cases that only apply to ZooKeeper.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

mod access;
mod cluster;
mod ensemble;
mod own;
mod queue;
mod sessions;
mod store;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use lockkit_conformance::{AnyBackend, Case, Entry, Harness, Hook, Sharing, Store, WallClock};
use lockkit_core::backend::{Backend, BackendInfo, BackendUrl, Promises};
use lockkit_testbed::{LINK_HOOKS, SERVER_HOOKS, ServerClock, StartedOnce};
use lockkit_zk::{ZkBackend, ZkConfig};

use self::store::Server;

fn main() -> ExitCode {
    lockkit_conformance::main(ZkHarness::default())
}

#[derive(Debug, Default)]
struct ZkHarness {
    shared: StartedOnce<Server>,
}

impl Harness for ZkHarness {
    fn name(&self) -> String {
        "zk".to_owned()
    }

    fn info(&self) -> BackendInfo {
        ZkBackend::new(ZkConfig::new(["127.0.0.1"]).unwrap()).info()
    }

    fn promises(&self) -> Promises {
        ZkBackend::new(ZkConfig::new(["127.0.0.1"]).unwrap()).promises()
    }

    /// One and a half ticks of the testbed's servers.
    fn expiry_delay(&self) -> Option<Duration> {
        Some(Duration::from_millis(750))
    }

    fn hooks(&self) -> Vec<Hook> {
        let own = [
            Hook::Evidence,
            Hook::EndSessionOfHolder,
            Hook::EndSessionOfWaiter,
            Hook::Wipe,
            Hook::LoseLeader,
            Hook::IsolateMember,
            Hook::WallClock,
            Hook::Secret,
            Hook::DenyLock,
            #[cfg(feature = "tls")]
            Hook::Tls,
        ];
        [&SERVER_HOOKS[..], &LINK_HOOKS, &own].concat()
    }

    fn why_not(&self, hook: Hook) -> Option<String> {
        let why = match hook {
            Hook::Tls => "built without the feature \"tls\"",
            Hook::ForgetHistory => "ZooKeeper's watches report later changes only, and need no history",
            Hook::FillStore => "ZooKeeper limits its data only by memory and disk",
            Hook::ExpireLogins => "a login lasts as long as its connection, and the client crate repeats it",
            _ => return None,
        };
        Some(why.to_owned())
    }

    fn parallel(&self) -> usize {
        8
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        match sharing {
            Sharing::Shared => Ok(self.shared.get_or_start(Server::start)?),
            Sharing::Own => Ok(Arc::new(Server::start()?)),
            Sharing::Login => Ok(Arc::new(Server::start_with_login()?)),
            Sharing::Cluster => Ok(Arc::new(cluster::start()?)),
            other => bail!("no store that is {other:?}"),
        }
    }

    fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        Ok(Box::new(ServerClock::new()?))
    }

    fn may_stay(&self, entry: &Entry) -> Option<&'static str> {
        let place = &*entry.place;
        if access::CHROOTS.contains(&place) {
            return Some("of the harness: the chroot of a client");
        }
        let place = access::CHROOTS.iter().find_map(|chroot| place.strip_prefix(chroot)).unwrap_or(place);
        if place.starts_with("/lockkit/:records/") {
            return Some("a record: ZooKeeper keeps it for good, one small node per name");
        }
        // `/lockkit`, and below it one for each lock, one for all clients and one for all records.
        let is_directory = place.split('/').count() <= 3 && place.starts_with("/lockkit");
        is_directory.then_some("a container: the server removes it some time after it has become empty")
    }

    /// Its directory and its record, and the node of a client that died until its session ends.
    fn left_per_lock(&self) -> usize {
        4
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        connect(address)
    }

    fn own_cases(&self) -> Vec<Case> {
        [&queue::CASES[..], &sessions::CASES, &ensemble::CASES].concat()
    }
}

fn backend(url: &str) -> Result<ZkBackend> {
    Ok(ZkBackend::new(ZkConfig::from_url(BackendUrl::parse(url)?)?))
}

fn connect(url: &str) -> Result<AnyBackend> {
    Ok(AnyBackend::new(backend(url)?))
}
