//! Grants and renewals that count only when enough replicas have acknowledged them.
//!
//! Replication is asynchronous. WAIT returns how many replicas have acknowledged all that *this connection* has
//! written. So a script and WAIT are one pipeline. It has a connection of its own, because WAIT blocks the connection.
//!
//! * Too few replicas acknowledge in time: a grant is withdrawn, and its acquire fails. A renewal is unknown: the hold
//!   ends at its deadline, unless a later renewal is acknowledged. A replica that acknowledged the last renewal has the
//!   lock at least until then, should it be promoted.
//! * The client crate repeats a pipeline over another connection: only as a whole, so WAIT covers the repeated script.
//! * The connection is dead, or leads to a former master that its replicas still follow: it is watched and replaced
//!   like the main connection. A grant that it does not find is looked up once more over another connection.
//! * The master is demoted during WAIT, which ends with UNBLOCKED, or before it, which refuses WAIT: nobody knows which
//!   replicas have the grant. It is looked up over another connection, as after a lost reply.
//! * No connection is open, or the outcome is unknown: the grant is withdrawn. A try fails; for a waiting claim the keeper
//!   makes a new one after a pause. Other clients may have the lock meanwhile.
//! * The lock has gone meanwhile, or was granted to the same claim again (a failover that one of the two connections has
//!   noticed, a lifetime shorter than two requests): the same. It says nothing about the replicas.

use std::{fmt, sync::Arc, time::Duration};

use lockkit_core::{BootInstant, ErrorKind, FencingToken, backend::Claim};
use redis::Value;
use tracing::debug;

use super::{RedisSession, acquire::ClaimOutcome, registry::ClaimEntry};
use crate::{
    error::{Effect, RequestError},
    server::Server,
    topology::Connector,
    wire::{Call, ClaimState, parse_claim_state, parse_renewals},
};

/// Share of a request's time limit that the replicas get; the rest is for the master.
const WAIT_SHARE: u32 = 2;

/// How often a grant is looked up; the second time over another connection.
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
    pub(crate) async fn connect(connector: Connector, count: u32) -> Result<Self, RequestError> {
        Ok(Self { server: Server::connect(connector, Arc::new(())).await?, count })
    }

    /// Waits until enough replicas have the grant with this token. `confirm` writes it again.
    pub(crate) async fn confirm(&self, confirm: &Call, token: FencingToken) -> Result<(), RequestError> {
        let mut tries = 0;
        loop {
            tries += 1;
            // In a box: otherwise every acquire would have its size, also where no replicas are waited for.
            let asked = Box::pin(self.run(self.server.request_timeout(), confirm, false));
            let fault = match asked.await {
                Ok((answer, acknowledged)) => match parse_claim_state(answer)? {
                    ClaimState::Granted(found) if found == token => return acknowledged,
                    // This connection may lead to a former master.
                    other => {
                        self.server.reconnect();
                        let why = format!("the lock was gone when replicas were asked for it: {other:?}");
                        RequestError::new(Effect::Busy, ErrorKind::Unavailable, why)
                    }
                },
                Err(fault) if fault.is_transient() => fault,
                Err(fault) => return Err(fault),
            };
            if tries == CONFIRMS_MAX {
                return Err(fault);
            }
            debug!(?fault, "a grant was not confirmed and is looked up over another connection");
        }
    }

    /// Renews holds. Returns for each whether it is held; an error if too few replicas have the renewal.
    pub(crate) async fn renew(
        &self,
        limit: Duration,
        renew: &Call,
        holds: usize,
        asking: bool,
    ) -> Result<Vec<Result<bool, RequestError>>, RequestError> {
        let (answer, acknowledged) = self.run(limit, renew, asking).await?;
        let is_known = |held: bool| if held { acknowledged.clone().map(|()| true) } else { Ok(false) };
        Ok(parse_renewals(answer, holds)?.into_iter().map(is_known).collect())
    }

    /// Executes a script about one hold. Returns whether it is held; an error if too few replicas have what the script
    /// wrote.
    pub(crate) async fn write_if_held(&self, call: &Call) -> Result<bool, RequestError> {
        let (answer, acknowledged) = self.run(self.server.request_timeout(), call, false).await?;
        let is_held = redis::from_redis_value(answer)?;
        if is_held { acknowledged.map(|()| true) } else { Ok(false) }
    }

    /// Returns the answer of a script, and whether enough replicas have what it wrote.
    async fn run(
        &self,
        limit: Duration,
        call: &Call,
        asking: bool,
    ) -> Result<(Value, Result<(), RequestError>), RequestError> {
        let wait = redis::cmd("WAIT").arg(self.count).arg(wait_ms(limit)).to_owned();
        let answers = self.server.run_with(limit, call, Some(wait), asking).await?;
        let [answer, acknowledgements] = <[Value; 2]>::try_from(answers)
            .map_err(|_| RequestError::unexpected("a script and WAIT did not get one answer each"))?;
        let acknowledged = match acknowledgements {
            Value::Int(count) if count >= i64::from(self.count) => Ok(()),
            answer => Err(self.too_few_replicas(format_args!("{answer:?} acknowledged it"))),
        };
        Ok((answer, acknowledged))
    }

    fn too_few_replicas(&self, why: fmt::Arguments<'_>) -> RequestError {
        let message = format!("{} replicas must acknowledge a grant; {why}", self.count);
        RequestError::new(Effect::Refused, ErrorKind::Unavailable, message)
    }
}

/// Returns for how many milliseconds WAIT may wait in a request of this time limit.
fn wait_ms(limit: Duration) -> u64 {
    let wait_ms = u64::try_from((limit / WAIT_SHARE).as_millis()).unwrap_or(u64::MAX);
    // WAIT with 0 ms has no time limit.
    wait_ms.max(1)
}

impl RedisSession {
    /// Waits until the configured number of replicas has the grant that the master has made. If nobody knows whether they
    /// have it, a waiting claim ends without a grant.
    pub(crate) async fn confirm_at_replicas(
        &self,
        claim: &Claim,
        entry: &ClaimEntry,
        token: FencingToken,
        armed_at: BootInstant,
    ) -> Result<ClaimOutcome, RequestError> {
        // If anything fails from here on, the grant must be withdrawn.
        entry.mark_in_doubt();
        if let Some(replicas) = &self.replicas {
            match replicas.confirm(&self.params.confirm(entry), token).await {
                Err(fault) if claim.wait() && fault.is_transient() => {
                    debug!(?fault, claim = ?entry.id, "not confirmed by replicas");
                    return Ok(ClaimOutcome::EntryGone);
                }
                confirmed => confirmed?,
            }
        }
        Ok(ClaimOutcome::Granted(token, armed_at))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_conformance::direct::{LONG, bounded, fresh_name, is_entry_gone, start};
    use lockkit_core::{
        Clock, LockClient,
        backend::{Backend, BackendUrl},
    };

    use super::*;
    use crate::{
        RedisBackend, RedisConfig,
        tests::scripted::{Answer, ScriptedServer, greeting},
        topology::{Dialer, Login, Topology},
        wire::{INSPECT, RELEASE},
    };

    /// Else a request with hardly any time left would block its connection for as long as replicas are away.
    #[test]
    fn wait_for_replicas_has_a_time_limit_however_short_the_rest_is() {
        let found = [3000, 2, 1, 0].map(|limit_ms| wait_ms(Duration::from_millis(limit_ms)));
        assert_eq!(found, [1500, 1, 1, 1]);
    }

    /// The first one may lead to a former master, and so would every later try. As a replica it refuses WAIT.
    #[tokio::test]
    async fn grant_that_is_not_found_is_looked_up_over_another_connection() {
        for wait_of_the_first in [":0\r\n", "-ERR WAIT cannot be used with replica instances.\r\n"] {
            looked_up_over_another_connection(wait_of_the_first).await;
        }
    }

    async fn looked_up_over_another_connection(wait_of_the_first: &'static str) {
        let server = ScriptedServer::start(|_| {
            move |connection, words: &[String]| match (&*words[0], connection) {
                ("EVALSHA", 0) => Answer::Text("*2\r\n$4\r\ngone\r\n:0\r\n".to_owned()),
                ("EVALSHA", _) => Answer::Text(":7\r\n".to_owned()),
                ("WAIT", 0) => Answer::Text(wait_of_the_first.to_owned()),
                ("WAIT", _) => Answer::Text(":1\r\n".to_owned()),
                _ => greeting(words),
            }
        });
        let connector = Connector {
            topology: Topology::Single(server.await.address),
            dialer: Dialer { login: Login::default(), tls: None, timeout: lockkit_conformance::direct::HANG },
            sentinel_login: Login::default(),
            cluster_retries: 0,
        };
        let replicas = Replicas::connect(connector, 1).await.unwrap();
        let confirm = Call::about(&INSPECT, &["x"]);
        replicas.confirm(&confirm, FencingToken::new(7)).await.unwrap();
    }

    /// Returns a client's backend at a server that has one replica. Counts the other scripts over its main connection, and
    /// the withdrawals. The first connection that waits for replicas ends. As long as `refuses` is true of the counts, no
    /// other one can be opened.
    async fn without_replicas_while(
        refuses: impl Fn(&Counts) -> bool + Send + Sync + 'static,
    ) -> (RedisBackend, Arc<Counts>) {
        let counts = Arc::<Counts>::default();
        let counted = Arc::clone(&counts);
        let server = ScriptedServer::start(|_| {
            move |connection, words: &[String]| {
                let is_release = words.get(1).is_some_and(|script| script == RELEASE.digest());
                let answer = match (&*words[0], connection) {
                    ("EVALSHA", 0) if is_release => {
                        counted.releases.fetch_add(1, SeqCst);
                        ":1\r\n"
                    }
                    ("EVALSHA", 0) => {
                        counted.asks.fetch_add(1, SeqCst);
                        ":7\r\n"
                    }
                    ("EVALSHA", 1) => return Answer::EndOfConnection,
                    ("EVALSHA", _) => ":7\r\n",
                    ("WAIT", _) => ":1\r\n",
                    ("HELLO", 2..) if refuses(&counted) => {
                        "-LOADING Redis is loading the dataset in memory\r\n"
                    }
                    _ => return greeting(words),
                };
                Answer::Text(answer.to_owned())
            }
        });
        let url = format!("redis://{}/?min_replicas=1&request_timeout=60s", server.await.address);
        (RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(&url).unwrap()).unwrap()), counts)
    }

    #[derive(Default)]
    struct Counts {
        asks: AtomicUsize,
        releases: AtomicUsize,
    }

    /// It would keep the lock from all other clients, also if its connection to the replicas never comes back.
    #[tokio::test]
    async fn waiting_claim_whose_grant_cannot_be_looked_up_is_withdrawn() {
        let (backend, counts) = without_replicas_while(|_| true).await;
        let session = backend.open_session(LONG, Clock::boot()).await.unwrap();
        assert!(is_entry_gone(&start(&session, &fresh_name()).ends().await));
        assert_eq!(counts.releases.load(SeqCst), 1);
    }

    /// After an outage, the main connection may be open before this one.
    #[tokio::test]
    async fn acquire_waits_for_the_connection_to_replicas() {
        let (backend, counts) = without_replicas_while(|counts| counts.asks.load(SeqCst) < 2).await;
        let client = LockClient::builder(backend).ttl(LONG).build().await.unwrap();
        let guard = bounded(client.lock("x").unwrap().acquire()).await.unwrap();
        assert_eq!(guard.token(), FencingToken::new(7));
        assert!(counts.asks.load(SeqCst) >= 2);
    }
}
