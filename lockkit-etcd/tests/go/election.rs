//! The tests. Each runs a lockkit session in this process, and Go programs.

use std::{future::Future, sync::Arc};

use lockkit_conformance::direct::{LONG, bounded, granted, name, release, until};
use lockkit_core::{
    Clock, LockName, Metadata, Proposal,
    backend::{Backend, BackendUrl, Claim, ClaimControl, Grant, LeaderEntry, Session},
};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::Etcd;

use crate::program::Program;

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test);
}

async fn session(etcd: &Etcd) -> Arc<dyn Session> {
    let url = BackendUrl::parse(&format!("{}/?names=raw&request_timeout=10s", etcd.url())).unwrap();
    let backend = EtcdBackend::new(EtcdConfig::from_url(url).unwrap());
    backend.open_session(LONG, Clock::boot()).await.unwrap()
}

fn proposing(value: &str, number: u64) -> Metadata {
    Metadata::of_this_process(None).with_proposal(Proposal::new(value, number))
}

/// A campaign with this value.
async fn elected(session: &Arc<dyn Session>, election: &LockName, value: &str) -> Grant {
    let claim = Claim::new(election.clone(), true, proposing(value, 1), &ClaimControl::new());
    granted(bounded(session.acquire(claim)).await)
}

async fn proclaim(session: &Arc<dyn Session>, grant: &Grant, value: &str, number: u64) {
    let elections = session.elections().unwrap();
    assert!(bounded(elections.proclaim(grant, &proposing(value, number))).await.unwrap());
}

async fn leader(session: &Arc<dyn Session>, election: &LockName) -> Option<LeaderEntry> {
    bounded(session.elections().unwrap().leader(election)).await.unwrap()
}

/// The revision in an answer such as `elected 7`.
fn revision_in(line: &str, answer: &str) -> u64 {
    line.strip_prefix(answer).unwrap_or_else(|| panic!("{line}")).trim().parse().unwrap()
}

pub(crate) fn go_sees_ours(etcd: &Etcd) {
    run(async {
        let (session, election) = (session(etcd).await, name("app/leader"));
        let mut go = Program::start(etcd, "app/leader");
        let elect = elected(&session, &election, "10.0.0.1:80").await;
        let token = elect.token();
        go.send("leader");
        assert_eq!(go.line(), format!("leader {token} 10.0.0.1:80"));
        go.send("observe");
        assert_eq!(go.line(), format!("seen {token} 10.0.0.1:80"));
        proclaim(&session, &elect, "10.0.0.1:81", 2).await;
        assert_eq!(go.line(), format!("seen {token} 10.0.0.1:81"));
        release(&session, &elect).await;
        let next = elected(&session, &election, "again").await;
        assert_eq!(go.line(), format!("seen {} again", next.token()));
        release(&session, &next).await;
    });
}

pub(crate) fn we_see_theirs(etcd: &Etcd) {
    run(async {
        let (session, election) = (session(etcd).await, name("app/leader"));
        let mut watch = session.elections().unwrap().watch(&election).await.unwrap();
        let mut go = Program::start(etcd, "app/leader");
        let (mut numbers, mut token) = (vec![0], 0);
        for (command, value) in [("campaign", "a"), ("proclaim", "b"), ("proclaim", "c")] {
            go.send(&format!("{command} {value}"));
            // Only the watch makes this look again.
            let seen = loop {
                match leader(&session, &election).await {
                    Some(seen) if seen.proposal.value == value => break seen,
                    _ => bounded(watch.changed()).await,
                }
            };
            let line = go.line();
            if command == "campaign" {
                token = revision_in(&line, "elected");
            }
            assert_eq!((seen.token.get(), seen.metadata), (token, None));
            numbers.push(seen.proposal.number);
        }
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        go.send("resign");
        while leader(&session, &election).await.is_some() {
            bounded(watch.changed()).await;
        }
        assert_eq!(go.line(), "resigned");
    });
}

pub(crate) fn both_campaign(etcd: &Etcd) {
    run(async {
        let (session, election) = (session(etcd).await, name("app/leader"));
        let (mut go, mut tokens) = (Program::start(etcd, "app/leader"), Vec::new());
        go.send("campaign go");
        tokens.push(revision_in(&go.line(), "elected"));
        for round in 1..=3 {
            let queued = |count: usize| async move {
                until("the next one is queued", async || etcd.keys("app/leader/").unwrap().len() == count)
                    .await;
            };
            let ours = tokio::spawn({
                let (session, election) = (Arc::clone(&session), election.clone());
                async move { elected(&session, &election, "lockkit").await }
            });
            queued(2).await;
            assert!(!ours.is_finished(), "two leaders in round {round}");
            go.send("resign");
            assert_eq!(go.line(), "resigned");
            let elect = bounded(ours).await.unwrap();
            tokens.push(elect.token().get());
            go.send("campaign go");
            queued(2).await;
            assert!(go.is_silent(), "two leaders in round {round}");
            release(&session, &elect).await;
            tokens.push(revision_in(&go.line(), "elected"));
        }
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    });
}
