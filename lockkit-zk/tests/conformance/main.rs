//! The conformance suite on a real ZooKeeper, and cases that only ZooKeeper has.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

mod ensemble;
mod own;
mod queue;
mod sessions;
mod store;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use lockkit_conformance::{AnyBackend, Case, Harness, Hook, Rounds, Sharing, Store, Time, WallClock};
use lockkit_core::backend::{Backend, BackendInfo, BackendUrl};
use lockkit_testbed::{ServerClock, StartedOnce};
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

    fn time(&self) -> Time {
        Time::Real
    }

    fn rounds(&self) -> Rounds {
        Rounds::Few
    }

    fn hooks(&self) -> Vec<Hook> {
        vec![
            Hook::Processes,
            Hook::Entries,
            Hook::Requests,
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
            Hook::Wipe,
            Hook::WallClock,
        ]
    }

    fn parallel(&self) -> usize {
        8
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        if sharing == Sharing::Own {
            return Ok(Arc::new(Server::start()?));
        }
        Ok(self.shared.get_or_start(Server::start)?)
    }

    fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        Ok(Box::new(ServerClock::new()?))
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        Ok(AnyBackend::new(backend(address)?))
    }

    fn own_cases(&self) -> Vec<Case> {
        [&queue::CASES[..], &sessions::CASES, &ensemble::CASES].concat()
    }
}

fn backend(url: &str) -> Result<ZkBackend> {
    Ok(ZkBackend::new(ZkConfig::from_url(BackendUrl::parse(url)?)?))
}
