//! The conformance suite on a real etcd.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test program")]

mod access;
mod cluster;
mod forms;
mod link;
mod server;

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Result, bail};
use lockkit_conformance::{AnyBackend, Entry, Harness, Hook, Sharing, Store, WallClock};
use lockkit_core::backend::{Backend, BackendInfo, BackendUrl, Promises};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::{LINK_HOOKS, SERVER_HOOKS, ServerClock, SmallDisk, StartedOnce};

use crate::{
    forms::Form,
    server::{BALLAST, Server},
};

fn main() -> ExitCode {
    let shared = Arc::<StartedOnce<Server>>::default();
    let harness = |form| {
        let (shared, own) = (Arc::clone(&shared), StartedOnce::default());
        Box::new(EtcdHarness { form, shared, own }) as Box<dyn Harness>
    };
    let forms = std::iter::once(&forms::QUEUE).chain(&forms::FURTHER);
    lockkit_conformance::main_of(forms.map(harness).collect())
}

#[derive(Debug)]
struct EtcdHarness {
    form: &'static Form,
    /// One server for all forms.
    shared: Arc<StartedOnce<Server>>,
    /// The same, as the store of this form.
    own: StartedOnce<Server>,
}

impl Harness for EtcdHarness {
    fn name(&self) -> String {
        self.form.name.to_owned()
    }

    fn info(&self) -> BackendInfo {
        backend(&format!("etcd://127.0.0.1{}", self.form.tail("3s"))).unwrap().info()
    }

    fn promises(&self) -> Promises {
        backend(&format!("etcd://127.0.0.1{}", self.form.tail("3s"))).unwrap().promises()
    }

    /// etcd looks for ended leases twice a second.
    fn expiry_delay(&self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }

    fn hooks(&self) -> Vec<Hook> {
        let mut hooks = [&SERVER_HOOKS[..], &LINK_HOOKS].concat();
        hooks.extend([
            Hook::EndSessionOfHolder,
            Hook::EndSessionOfWaiter,
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
        ]);
        if self.needs_small_disk() {
            hooks.push(Hook::FullDisk);
        }
        if self.info().powers.evidence {
            hooks.push(Hook::Evidence);
        }
        hooks.retain(|hook| self.lacks(*hook).is_none());
        hooks
    }

    fn why_not(&self, hook: Hook) -> Option<String> {
        let lacks = self.lacks(hook).map(str::to_owned);
        lacks.or_else(|| match hook {
            Hook::Tls => Some("built without the feature \"tls\"".to_owned()),
            Hook::FullDisk => no_small_disk().clone(),
            _ => None,
        })
    }

    fn parallel(&self) -> usize {
        self.form.parallel
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        match sharing {
            Sharing::Shared if self.form.has_own_servers => Ok(Arc::new(Server::start(self.form)?)),
            Sharing::Shared => {
                let shared = self.shared.get_or_start(|| Server::start(&forms::QUEUE))?;
                Ok(self.own.get_or_start(|| Ok(shared.shared_with(self.form)))?)
            }
            Sharing::Own if self.needs_small_disk() => Ok(Arc::new(Server::start_on_small_disk(self.form)?)),
            Sharing::Own => Ok(Arc::new(Server::start(self.form)?)),
            Sharing::Login => Ok(Arc::new(Server::start_with_login(self.form)?)),
            Sharing::Cluster => Ok(Arc::new(cluster::start(self.form)?)),
            other => bail!("no store that is {other:?}"),
        }
    }

    fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        Ok(Box::new(ServerClock::new()?))
    }

    fn may_stay(&self, entry: &Entry) -> Option<&'static str> {
        (entry.place == BALLAST).then_some("written by this harness to fill a disk")
    }

    /// The key of a client that died, until its lease ends.
    fn left_per_lock(&self) -> usize {
        2
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        connect(address)
    }
}

impl EtcdHarness {
    /// Returns why the form lacks this hook, if it does.
    fn lacks(&self, hook: Hook) -> Option<&'static str> {
        self.form.lacks.iter().find(|(lacks, _)| *lacks == hook).map(|(_, why)| *why)
    }

    fn needs_small_disk(&self) -> bool {
        self.lacks(Hook::FullDisk).is_none() && no_small_disk().is_none()
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

fn connect(url: &str) -> Result<AnyBackend> {
    Ok(AnyBackend::new(backend(url)?))
}
