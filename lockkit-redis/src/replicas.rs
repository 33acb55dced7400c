//! Grants that count only when some replicas know of them.
//!
//! Replication is asynchronous, and WAIT tells how many replicas have got everything that *this connection* has written.
//! So a connection of its own confirms the grant (a write: the lifetime starts anew) and waits; it also keeps the waiting
//! off the connection that everything else goes over, which WAIT blocks.
//!
//! * A cluster's client crate may send a request again, over another connection, for which WAIT has nothing to wait: so
//!   WAIT goes in one request with another confirmation, whose answer counts.
//! * Too few replicas answer in time: the claim is taken back, and its acquire is an error.
//! * The lock has gone meanwhile, or was granted to the same claim again, or the connection fails: the same.
//! * The connection is kept for the next grant, and nobody watches it: it may be dead, or lead to a server that is the
//!   master no more. What does not confirm over it is confirmed over a new one, which it may have been before.

use std::{fmt, time::Duration};

use lockkit_core::{ErrorKind, FencingToken};
use redis::Value;
use tokio::sync::Mutex;
use tracing::debug;

use crate::{
    error::{Effect, Fault},
    scripts::{Call, Standing, standing},
    server::execute,
    topology::{Connector, Listener, Wire},
};

/// Share of a request's time that the replicas have; the rest is for the confirmation.
const WAIT_SHARE: u32 = 2;

/// Share of a request's time after which a kept connection is given up that has not answered.
const KEPT_SHARE: u32 = 4;

/// The connection that waits for replicas.
pub(crate) struct Replicas {
    connector: Connector,
    count: u32,
    /// WAIT blocks a connection, so grants take turns. `None` before the first one, and after a failure.
    wire: Mutex<Option<Wire>>,
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Replicas {
    pub(crate) fn new(connector: Connector, count: u32) -> Self {
        Self { connector, count, wire: Mutex::new(None) }
    }

    /// Sees to it that so many replicas know of the grant of this token; `confirm` writes it again.
    pub(crate) async fn confirm(&self, confirm: &Call, token: FencingToken) -> Result<(), Fault> {
        let timeout = self.connector.timeout();
        let confirmed = tokio::time::timeout(timeout, async {
            let mut kept = self.wire.lock().await;
            let mut wire = self.written(kept.take(), confirm, token).await?;
            self.wait(&mut wire, confirm, token, timeout / WAIT_SHARE).await?;
            *kept = Some(wire);
            Ok(())
        });
        confirmed.await.unwrap_or_else(|_| Err(Fault::no_reply()))
    }

    /// The connection over which the grant was written again, and over which the replicas are to be waited for.
    async fn written(&self, kept: Option<Wire>, confirm: &Call, token: FencingToken) -> Result<Wire, Fault> {
        if let Some(mut wire) = kept {
            let writing = self.write(&mut wire, confirm, token);
            match tokio::time::timeout(self.connector.timeout() / KEPT_SHARE, writing).await {
                Ok(Ok(())) => return Ok(wire),
                outcome => debug!(?outcome, "no confirmation over the connection that was kept"),
            }
        }
        let mut wire = self.connector.connect(Listener::deaf()).await?;
        self.write(&mut wire, confirm, token).await?;
        Ok(wire)
    }

    async fn write(&self, wire: &mut Wire, confirm: &Call, token: FencingToken) -> Result<(), Fault> {
        self.require(standing(execute(wire, confirm).await?)?, token)
    }

    /// The grant still is the one that was answered: after a failover the same claim may have been granted anew.
    fn require(&self, found: Standing, token: FencingToken) -> Result<(), Fault> {
        match found {
            Standing::Granted(found) if found == token => Ok(()),
            other => Err(self.shortfall(format!("the lock went before they were asked: {other:?}"))),
        }
    }

    async fn wait(
        &self,
        wire: &mut Wire,
        confirm: &Call,
        token: FencingToken,
        patience: Duration,
    ) -> Result<(), Fault> {
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let wait = redis::cmd("WAIT").arg(self.count).arg(patience).to_owned();
        // In full: where it is sent again the script may not be known.
        let both = wire.query_together(confirm.first_key(), vec![confirm.full(), wait], false).await?;
        let [confirmed, known] = <[Value; 2]>::try_from(both).map_err(|_| Fault::nonsense("two answers"))?;
        self.require(standing(confirmed)?, token)?;
        match known {
            Value::Int(known) if known >= i64::from(self.count) => Ok(()),
            answer => Err(self.shortfall(format!("{answer:?} of them have it"))),
        }
    }

    fn shortfall(&self, why: String) -> Fault {
        let message = format!("{} replicas must know of a grant; {why}", self.count);
        Fault::new(Effect::Refused, ErrorKind::Unavailable, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RedisConfig;

    #[test]
    fn another_grant_of_the_same_claim_is_not_the_one_that_was_answered() {
        let replicas = Replicas::new(RedisConfig::new(["127.0.0.1"]).unwrap().connector(), 1);
        let granted = |token| Standing::Granted(FencingToken::new(token));
        replicas.require(granted(7), FencingToken::new(7)).unwrap();
        for found in [granted(8), Standing::Queued(1), Standing::Gone] {
            let fault = replicas.require(found, FencingToken::new(7)).unwrap_err();
            assert_eq!(fault.kind(), ErrorKind::Unavailable, "{found:?}");
        }
    }
}
