//! Sessions at a scripted server, with a paused clock: which request is sent, and when.

mod close;
mod entries;
mod errors;
mod full_store;
mod pins;
mod requests;
mod streams;
mod tries;
mod waits;

use std::{sync::Arc, time::Duration};

use lockkit_core::{Clock, LockName, backend::Session};
use tokio::time::Instant;

use super::EtcdSession;
use crate::{
    EtcdConfig,
    call::Server,
    client::{
        Client,
        scripted::{Call, Fate, Script},
    },
};

/// A ttl with a re-check every 10 s.
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// Time limit of a request.
pub(crate) const REQUEST: Duration = Duration::from_secs(3);

/// More requests than any of these tests needs: a retry without a pause would go on for ever.
const ENDLESS: usize = 500;

pub(crate) fn config(endpoints: usize) -> EtcdConfig {
    EtcdConfig::new((0..endpoints).map(|nth| format!("scripted-{nth}"))).unwrap().request_timeout(REQUEST)
}

pub(crate) fn server(script: &Script, endpoints: usize) -> Server {
    Server::over(Client::scripted(script), &config(endpoints))
}

/// Opens a session in the default form.
pub(crate) async fn queue_session(script: &Script) -> Arc<EtcdSession> {
    session_of(script, &config(1)).await
}

pub(crate) async fn session_of(script: &Script, config: &EtcdConfig) -> Arc<EtcdSession> {
    let server = Server::over(Client::scripted(script), config);
    Arc::new(EtcdSession::open(server, config.layout(), TTL, Clock::tokio()).await.unwrap())
}

pub(crate) async fn session(script: &Script) -> Arc<dyn Session> {
    queue_session(script).await
}

/// Returns the key of another program in this queue.
pub(crate) fn foreign(name: &LockName) -> String {
    format!("lockkit/{name}/foreign")
}

/// Returns a key that a lockkit client of another lease has in this queue.
fn of_another_client(name: &LockName) -> String {
    format!("lockkit/{name}/af-8-{}", lockkit_core::backend::ClaimId::random())
}

/// Refuses requests of this method for now, and after [`ENDLESS`] of them no more.
pub(crate) fn busy(method: &'static str) -> impl FnMut(&Call) -> Fate + Send + 'static {
    let mut refused = 0;
    move |call| {
        refused += usize::from(call.is(method));
        match call.is(method) && refused < ENDLESS {
            true => Fate::Refused(tonic::Code::ResourceExhausted, "etcdserver: too many requests"),
            false => Fate::Served,
        }
    }
}

/// Returns a rule that changes something before each transaction, for [`ENDLESS`] times. It refers to its own server: set
/// another one at the end.
pub(crate) fn before_each_txn(
    mut change: impl FnMut() + Send + 'static,
) -> impl FnMut(&Call) -> Fate + Send + 'static {
    let mut changes = 0;
    move |call| {
        if call.is("Txn") && changes < ENDLESS {
            changes += 1;
            change();
        }
        Fate::Served
    }
}

/// Returns a rule with this fate for the first requests of this method.
pub(crate) fn first(
    count: usize,
    method: &'static str,
    fate: Fate,
) -> impl FnMut(&Call) -> Fate + Send + 'static {
    let mut seen = 0;
    move |call| {
        seen += usize::from(call.is(method));
        if call.is(method) && seen <= count { fate.clone() } else { Fate::Served }
    }
}

/// Waits until this many further requests of this method have come.
pub(crate) async fn after_requests(script: &Script, method: &str, count: usize) {
    let before = script.count(method);
    while script.count(method) < before + count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns when the requests of this method came, since this moment.
pub(crate) fn times(script: &Script, method: &str, since: Instant) -> Vec<Duration> {
    script.take_calls().iter().filter(|call| call.is(method)).map(|call| call.at - since).collect()
}
