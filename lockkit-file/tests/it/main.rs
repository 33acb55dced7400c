//! Lock files between real processes, and folders with faults.

// The helpers of tests are no `#[test]` themselves, which is all that clippy.toml exempts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests are not recognised as tests"
)]

mod child;
mod elections;
mod exclusion;
mod failures;
mod holder;
mod links;
mod listing;
mod loss;
mod records;
mod waiting;

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use lockkit_core::{
    Clock, Error, LockClient, LockName, Metadata, Proposal,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Session},
};
use lockkit_file::{FileBackend, FileConfig};

/// Bound on everything that is expected to happen soon.
const SOON: Duration = Duration::from_secs(30);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {SOON:?}"),
    }
}

async fn try_client(folder: &Path) -> Result<LockClient, Error> {
    LockClient::builder(FileBackend::new(FileConfig::new(folder)?)).build().await
}

async fn session(folder: &Path) -> Arc<dyn Session> {
    let backend = FileBackend::new(FileConfig::new(folder).unwrap());
    backend.open_session(Duration::MAX, Clock::boot()).await.unwrap()
}

fn metadata(proposal: Option<Proposal>) -> Metadata {
    let metadata = Metadata::of_this_process(None);
    match proposal {
        Some(proposal) => metadata.with_proposal(proposal),
        None => metadata,
    }
}

async fn try_grant(session: &dyn Session, proposal: Option<Proposal>) -> Result<Grant, Error> {
    let name = LockName::new(child::NAME).unwrap();
    let claim = Claim::new(name, false, metadata(proposal), &ClaimControl::new());
    match soon("an answer", session.acquire(claim)).await? {
        Acquired::Granted(grant) => Ok(grant),
        other => panic!("{other:?}"),
    }
}

/// Takes the lock of the children, which is free; with a proposal as a candidate.
async fn grant(session: &dyn Session, proposal: Option<Proposal>) -> Grant {
    try_grant(session, proposal).await.unwrap()
}

async fn client(folder: &Path) -> LockClient {
    try_client(folder).await.unwrap()
}
