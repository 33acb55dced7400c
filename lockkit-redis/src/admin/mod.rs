//! What an operator asks, without a session: who holds a lock, which locks there are, and the end of a hold.
//!
//! Failure cases of a break:
//!
//! * The hold has ended meanwhile, or the inspection was outdated: the script compares claim and token, and changes
//!   nothing.
//! * The reply is lost: the outcome is unknown to the operator, who inspects and breaks again. A copy that arrives late
//!   finds another value. The client crate would send a copy to a cluster by itself, whose answer hides that of the
//!   first one: so it may not.
//! * The message to the broken holder is lost, or its client has no connection: its next heartbeat finds the loss.
//! * The holder's grant is not acknowledged by replicas yet: it is withdrawn, as it would be without the break.
//! * A failover loses the break, as it may lose a release: the hold is back, and an inspection shows it.
//! * The lock is pinned, or its holder has left it to its pin: it is free at once.

mod listing;
mod wire;

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    FencingToken, LockName, Metadata, Result,
    backend::{Admin, ClaimId, Contender, Inspection, Page},
    limits::METADATA_BYTES_MAX,
};
use redis::Value;

use self::wire::{Broken, Shown};
pub(crate) use self::{
    listing::listable,
    wire::{escape_glob, parse_inspection, parse_scan, scan},
};
use crate::{
    RedisBackend,
    error::{Effect, RequestError},
    keys::{LockKeys, parse_value},
    server::execute,
    session::find_next,
    topology::{Connection, PushHandler},
    wire::{Call, parse_release},
};

/// Waiters that an inspection returns; the rest of a longer queue is left out.
pub const INSPECTED_WAITERS_MAX: usize = 500;

/// The requests of an operator.
///
/// * `inspect` shows as the session of a contender the id of its client: while it is connected, the server has its
///   channel (`PUBSUB CHANNELS lockkit:client:ID`). The holder of another program appears by the lock's key alone: its
///   value is the secret that releases the lock.
/// * `list` finds what is under the prefix and has the form of a lock's key: without a prefix, data of other programs
///   may have it too. Needs the right `+scan`. A lock that is held and waited for may be on two pages. A slot that
///   moves to another node of a cluster meanwhile may hide its locks, and so may a failover or restart of a server
///   whose user has no right to INFO. Raw names cannot be listed: a lock cannot be distinguished from other strings.
/// * `break_lock` cannot distinguish two holds of other programs: it ends the one that has the lock when the request
///   arrives. It never ends a hold of this library instead.
#[async_trait]
impl Admin for RedisBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let keys = self.config.layout().keys(name)?;
        let inspecting = async {
            let mut connection = self.connect().await?;
            let call = wire::inspect(&keys, INSPECTED_WAITERS_MAX, METADATA_BYTES_MAX);
            parse_inspection(execute(&mut connection, &call).await?)
        };
        let shown = self.within_time_limit(inspecting).await;
        let (holder, waiters) = shown.map_err(|fault| fault.into_error("inspect").with_lock(name))?;
        Ok(Inspection::new(holder.map(|one| holder_of(&keys, &one)), waiters.iter().map(waiter).collect()))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        listing::page(self, prefix, after, limit).await
    }

    async fn break_lock(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        let keys = self.config.layout().keys(name)?;
        let Some(broken) = broken(&keys, holder) else { return Ok(false) };
        self.end_hold(&keys, &broken).await.map_err(|fault| fault.into_error("break").with_lock(name))
    }
}

impl RedisBackend {
    /// Opens a new connection: one that is kept would belong to the runtime of the first caller.
    async fn connect(&self) -> Result<Connection, RequestError> {
        self.config.connector().connect(PushHandler::ignore_all()).await
    }

    async fn within_time_limit<T>(
        &self,
        request: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let answer = tokio::time::timeout(self.config.request_timeout, request).await;
        answer.unwrap_or_else(|_| Err(RequestError::no_reply()))
    }

    /// Ends a hold, and returns whether the lock still had it.
    async fn end_hold(&self, keys: &LockKeys, broken: &Broken) -> Result<bool, RequestError> {
        let params = self.script_params(Duration::ZERO);
        let answer = self.send_once(&wire::break_hold(&params, keys, broken)).await?;
        let released = parse_release(answer)?;
        if released.is_unserved {
            let next = wire::find_next(&params, keys);
            find_next(|| async {
                let mut connection = self.connect().await?;
                self.within_time_limit(execute(&mut connection, &next)).await
            })
            .await;
        }
        Ok(released.was_held)
    }

    /// Sends a request whose answer must be that of its first copy.
    async fn send_once(&self, call: &Call) -> Result<Value, RequestError> {
        let connector = self.config.connector().without_retries();
        let mut connection = connector.connect(PushHandler::ignore_all()).await?;
        match self.within_time_limit(execute(&mut connection, call)).await {
            // Its slot is moving: nothing was executed, and the client crate must find the node that has it.
            Err(fault) if matches!(fault.effect, Effect::Elsewhere | Effect::Split) => {
                let mut connection = self.connect().await?;
                self.within_time_limit(execute(&mut connection, call)).await
            }
            answer => answer,
        }
    }
}

/// Returns which hold a contender stands for; `None` if no inspection shows such a holder of this lock.
fn broken(keys: &LockKeys, holder: &Contender) -> Option<Broken> {
    match (ClaimId::parse(&holder.entry), holder.token) {
        (Some(claim), Some(token)) => Some(Broken::Hold(claim, token)),
        (_, None) if holder.entry == keys.lock() => Some(Broken::OfAnotherProgram),
        _ => None,
    }
}

/// Returns the holder that wrote this value. The value of another program is the secret that releases its lock, so it
/// is never shown: such a holder appears by the lock's key.
fn holder_of(keys: &LockKeys, shown: &Shown) -> Contender {
    let contender = match parse_value(&String::from_utf8_lossy(&shown.text)) {
        Some((claim, token)) => {
            let metadata = Metadata::from_json(&shown.metadata);
            Contender::new(claim.to_string(), Some(FencingToken::new(token)), metadata)
        }
        None => Contender::new(keys.lock(), None, None),
    };
    with_session(contender, shown)
}

fn waiter(shown: &Shown) -> Contender {
    let contender =
        Contender::new(String::from_utf8_lossy(&shown.text), None, Metadata::from_json(&shown.metadata));
    with_session(contender, shown)
}

fn with_session(mut contender: Contender, shown: &Shown) -> Contender {
    if !shown.client.is_empty() {
        contender = contender.with_session(shown.client.clone());
    }
    match shown.remaining {
        Some(remaining) => contender.with_remaining(remaining),
        None => contender,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_conformance::direct::{HANG, bounded, fresh_name};
    use lockkit_core::ErrorKind;

    use super::*;
    use crate::{
        RedisConfig,
        tests::scripted::{Answer, FakeCluster},
    };

    /// The answer to a second copy would hide that the first one has ended the hold.
    #[tokio::test]
    async fn break_is_sent_to_a_cluster_once() {
        let cluster = FakeCluster::start().await;
        let config =
            RedisConfig::cluster([cluster.server.address.to_string()]).unwrap().request_timeout(HANG);
        let holder = Contender::new(ClaimId::random().to_string(), Some(FencingToken::new(7)), None);
        let broken = RedisBackend::new(config).break_lock(&LockName::new("x").unwrap(), &holder).await;
        assert_eq!(broken.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(cluster.scripts.load(SeqCst), 1);
    }

    /// Nothing was executed then. The client crate may not send a break again by itself.
    #[tokio::test]
    async fn break_in_a_moving_slot_is_sent_again() {
        let asked = AtomicUsize::default();
        let cluster = FakeCluster::answering(move |_| {
            Answer::Text(match asked.fetch_add(1, SeqCst) {
                0 => "-TRYAGAIN Multiple keys request during rehashing of slot\r\n".to_owned(),
                _ => ":1\r\n".to_owned(),
            })
        });
        let node = cluster.await.server.address.to_string();
        let config = RedisConfig::cluster([node]).unwrap().request_timeout(HANG);
        let hold = Contender::new(ClaimId::random().to_string(), Some(FencingToken::new(7)), None);
        let broken = bounded(RedisBackend::new(config).break_lock(&fresh_name(), &hold)).await;
        assert!(broken.unwrap());
    }

    /// A waiter has no token, as the hold of another program has none.
    #[test]
    fn only_what_an_inspection_shows_as_the_holder_is_broken() {
        let (keys, claim) = (crate::tests::keys(), ClaimId::random().to_string());
        let is_broken = |entry: &str, token: Option<u64>| {
            broken(&keys, &Contender::new(entry, token.map(FencingToken::new), None)).is_some()
        };
        assert!(is_broken(&claim, Some(7)) && is_broken(keys.lock(), None));
        assert!(!is_broken(&claim, None) && !is_broken("another", None) && !is_broken(keys.lock(), Some(7)));
    }
}
