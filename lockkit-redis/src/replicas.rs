//! Grants and renewals that count only when some replicas have them.
//!
//! Replication is asynchronous. WAIT answers how many replicas have acknowledged all that *this connection* has written.
//! So a script and WAIT are one pipeline, and go over a connection of their own, because WAIT blocks it.
//!
//! * Too few replicas acknowledge in time: a grant is taken back, and its acquire is an error. A renewal is unknown: the hold
//!   ends at its deadline, unless a later renewal is acknowledged. A replica that is promoted meanwhile has the lock for as
//!   long at least, if it is one of those that acknowledged the last one.
//! * The client crate sends a pipeline again over another connection, as a whole: what it waits for is in it.
//! * The connection is dead, or leads to a former master that its replicas still follow: it is watched and replaced just as
//!   the one for everything else. A grant that it does not find is looked for over another connection, once.
//! * The lock has gone meanwhile, or was granted to the same claim again: refused.

use std::{fmt, time::Duration};

use lockkit_core::{ErrorKind, FencingToken};
use redis::Value;
use tracing::debug;

use crate::{
    error::{Effect, Fault},
    scripts::{Call, Standing, standing, verdicts},
    server::Server,
    topology::Connector,
};

/// Share of a request's time that the replicas have; the rest is for the master.
const WAIT_SHARE: u32 = 2;

/// How often a grant is looked for: the second time over another connection.
const CONFIRMS_MAX: u32 = 2;

/// The connection that waits for replicas.
pub(crate) struct Replicas {
    server: Server,
    count: u32,
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Replicas {
    pub(crate) async fn connect(connector: Connector, count: u32) -> Result<Self, Fault> {
        Ok(Self { server: Server::connect_silent(connector).await?, count })
    }

    /// Waits until enough replicas have the grant of this token; `confirm` writes it again.
    pub(crate) async fn confirm(&self, confirm: &Call, token: FencingToken) -> Result<(), Fault> {
        let mut tries = 0;
        loop {
            tries += 1;
            let fault = match self.run(self.server.request_timeout(), confirm, false).await {
                Ok((answer, acknowledged)) => match standing(answer)? {
                    Standing::Granted(found) if found == token => return acknowledged,
                    // The master may be another one.
                    other => {
                        self.server.reconnect();
                        self.shortfall(format_args!("the lock went before they were asked: {other:?}"))
                    }
                },
                Err(fault) if fault.may_pass() => fault,
                Err(fault) => return Err(fault),
            };
            if tries == CONFIRMS_MAX {
                return Err(fault);
            }
            debug!(?fault, "a grant was not confirmed, and is looked for over another connection");
        }
    }

    /// Renews holds; of each whether it is held, as far as enough replicas have that.
    pub(crate) async fn renew(
        &self,
        limit: Duration,
        renew: &Call,
        holds: usize,
        asking: bool,
    ) -> Result<Vec<Result<bool, Fault>>, Fault> {
        let (answer, acknowledged) = self.run(limit, renew, asking).await?;
        let is_known = |held: bool| if held { acknowledged.clone().map(|()| true) } else { Ok(false) };
        Ok(verdicts(answer, holds)?.into_iter().map(is_known).collect())
    }

    /// What a script answers, and whether enough replicas have what it wrote.
    async fn run(
        &self,
        limit: Duration,
        call: &Call,
        asking: bool,
    ) -> Result<(Value, Result<(), Fault>), Fault> {
        let patience = u64::try_from((limit / WAIT_SHARE).as_millis()).unwrap_or(u64::MAX);
        // Without an end it would wait for 0 ms.
        let wait = redis::cmd("WAIT").arg(self.count).arg(patience.max(1)).to_owned();
        let answers = self.server.run_with(limit, call, Some(wait), asking).await?;
        let [answer, known] = <[Value; 2]>::try_from(answers)
            .map_err(|_| Fault::nonsense("not one answer each for a script and WAIT"))?;
        let acknowledged = match known {
            Value::Int(known) if known >= i64::from(self.count) => Ok(()),
            answer => Err(self.shortfall(format_args!("{answer:?} of them have it"))),
        };
        Ok((answer, acknowledged))
    }

    fn shortfall(&self, why: fmt::Arguments<'_>) -> Fault {
        let message = format!("{} replicas must know of a grant; {why}", self.count);
        Fault::new(Effect::Refused, ErrorKind::Unavailable, message)
    }
}
