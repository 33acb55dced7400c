//! The conformance suite on a real etcd.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

mod access;
mod cluster;
mod link;
mod server;

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use anyhow::Result;
use lockkit_conformance::{AnyBackend, Harness, Hook, Rounds, Sharing, Store, Time, WallClock};
use lockkit_core::backend::{Backend, BackendInfo, BackendUrl};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::{ServerClock, SmallDisk, StartedOnce};

use crate::{
    cluster::Cluster,
    server::{BALLAST, Server},
};

fn main() -> ExitCode {
    lockkit_conformance::main(EtcdHarness::default())
}

#[derive(Debug, Default)]
struct EtcdHarness {
    shared: StartedOnce<Server>,
}

impl Harness for EtcdHarness {
    fn name(&self) -> String {
        "etcd".to_owned()
    }

    fn info(&self) -> BackendInfo {
        EtcdBackend::new(EtcdConfig::new(["127.0.0.1"]).unwrap()).info()
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn rounds(&self) -> Rounds {
        Rounds::Few
    }

    fn hooks(&self) -> Vec<Hook> {
        let mut hooks = vec![
            Hook::Processes,
            Hook::Entries,
            Hook::Requests,
            Hook::BareNotification,
            Hook::Lifetimes,
            Hook::Contents,
            Hook::Counts,
            Hook::EndSessionOfHolder,
            Hook::EndSessionOfWaiter,
            Hook::DeleteEntries,
            Hook::WriteJunk,
            Hook::Freeze,
            Hook::Restart,
            Hook::HoldRequests,
            Hook::SwallowReplies,
            Hook::DropNotifications,
            Hook::Reset,
            Hook::Refuse,
            Hook::DropReplies,
            Hook::Delay,
            Hook::Trickle,
            Hook::HoldNotifications,
            Hook::Wipe,
            Hook::ForgetHistory,
            Hook::LoseLeader,
            Hook::IsolateMember,
            Hook::FillStore,
            Hook::ExpireLogins,
            Hook::WallClock,
            Hook::Secret,
            Hook::DenyLock,
            #[cfg(feature = "tls")]
            Hook::Tls,
        ];
        if no_small_disk().is_none() {
            hooks.push(Hook::FullDisk);
        }
        hooks
    }

    fn why_not(&self, hook: Hook) -> Option<String> {
        match hook {
            Hook::Tls => Some("built without the feature \"tls\"".to_owned()),
            Hook::FullDisk => no_small_disk().clone(),
            _ => None,
        }
    }

    fn parallel(&self) -> usize {
        8
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        match sharing {
            Sharing::Shared => Ok(self.shared.get_or_start(Server::start)?),
            Sharing::Own if no_small_disk().is_none() => Ok(Arc::new(Server::start_on_small_disk()?)),
            Sharing::Own => Ok(Arc::new(Server::start()?)),
            Sharing::Login => Ok(Arc::new(Server::start_with_login()?)),
            Sharing::Cluster => Ok(Arc::new(Cluster::start()?)),
        }
    }

    fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        Ok(Box::new(ServerClock::new()?))
    }

    fn may_stay(&self, place: &str) -> Option<&'static str> {
        (place == BALLAST).then_some("written by this harness to fill a disk")
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        Ok(AnyBackend::new(backend(address)?))
    }
}

/// Returns why a small disk cannot be mounted, if so.
fn no_small_disk() -> &'static Option<String> {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    WHY_NOT.get_or_init(SmallDisk::unavailable_reason)
}

fn backend(url: &str) -> Result<EtcdBackend> {
    Ok(EtcdBackend::new(EtcdConfig::from_url(BackendUrl::parse(url)?)?))
}
