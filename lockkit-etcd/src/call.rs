//! Requests with a time limit, and the connection that they go over.
//!
//! The client crate has no time limit of its own, retries nothing, and while one of several endpoints is down a fixed
//! share of all calls fails at once because the balancer picked it; the same share fails at once while one member is cut
//! from the others. Here every request ends within the configured time, and one that provably did nothing because of the
//! endpoint that it met is sent again at once.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, GetOptions, GetResponse, Txn, TxnResponse};
use lockkit_core::backend::retry_pauses;
use tokio::time::{Instant, timeout_at};

use crate::{
    EtcdConfig,
    error::{Effect, Fault},
    login::{Login, LoginNumber},
    outage::Outage,
    tls::with_tls,
    txn::{Revision, revision_of},
};

/// Pause between HTTP/2 pings. etcd ends a connection that is pinged more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How often per endpoint a request is sent at once when there was no connection to send it on. One time is not enough: a
/// refused connection is told to the next request, also when the server is back by then.
const SENDS_AT_ONCE: usize = 3;

/// A connection to etcd. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
    request_timeout: Duration,
    endpoints: usize,
    login: Arc<Login>,
    outage: Arc<Outage>,
    highest_revision: Arc<AtomicI64>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("request_timeout", &self.request_timeout).finish_non_exhaustive()
    }
}

impl Server {
    /// Prepares the connection, which is opened by the first request: the login, where there is one.
    pub(crate) async fn connect(config: &EtcdConfig) -> Result<Self, Fault> {
        let options = connect_options(config)?
            // Without it a watch on a member that lost its leader stays silent for ever.
            .with_require_leader(true)
            .with_connect_timeout(config.request_timeout)
            .with_keep_alive(PING_INTERVAL, config.request_timeout);
        let client = Client::connect(&config.endpoints, Some(options)).await?;
        let server = Self {
            client,
            request_timeout: config.request_timeout,
            endpoints: config.endpoints.len(),
            login: Arc::default(),
            outage: Arc::default(),
            highest_revision: Arc::default(),
        };
        if config.login.is_some() {
            // Not by an option of `connect`, which would begin with a connection of its own every time it is repeated.
            let log_in = |client: &Client| {
                let (mut client, login) = (client.clone(), config.login.clone());
                async move { client.update_user(login).await }
            };
            server.call(log_in).await?;
        }
        Ok(server)
    }

    /// The version that the server says it has.
    pub(crate) async fn version(&self) -> Result<String, Fault> {
        let status = self
            .call(|client| {
                let mut maintenance = client.maintenance_client();
                async move { maintenance.status().await }
            })
            .await?;
        Ok(status.version().to_owned())
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Result<TxnResponse, Fault> {
        let request = |client: &Client| {
            let (mut kv, txn) = (client.kv_client(), txn.clone());
            async move { kv.txn(txn).await }
        };
        let answer = self.call(request).await?;
        self.saw(revision_of(answer.header())?);
        Ok(answer)
    }

    pub(crate) async fn range(&self, key: &str, options: GetOptions) -> Result<GetResponse, Fault> {
        let request = |client: &Client| {
            let (mut kv, options) = (client.kv_client(), options.clone());
            async move { kv.get(key, Some(options)).await }
        };
        let answer = self.call(request).await?;
        self.saw(revision_of(answer.header())?);
        Ok(answer)
    }

    /// The highest revision that an answer has shown. A lower one later is that of a member that lags behind, or of a store
    /// that went back to a backup.
    pub(crate) fn highest_revision(&self) -> Revision {
        self.highest_revision.load(Ordering::Acquire)
    }

    pub(crate) fn saw(&self, revision: Revision) {
        self.highest_revision.fetch_max(revision, Ordering::AcqRel);
    }

    /// One request, sent until it reaches a server that accepts the login, with one time limit for everything.
    pub(crate) async fn call<T, F>(&self, request: impl Fn(&Client) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let until = Instant::now() + self.request_timeout;
        let mut pauses = None;
        loop {
            let login = self.login();
            let sent = self.send(&request);
            let refused = match timeout_at(until, sent).await {
                Ok(Err(fault)) if fault.effect == Effect::LoginStale => fault,
                Ok(answer) => return answer,
                Err(_) => return Err(Fault::no_reply()),
            };
            // Every change of a user or a role makes logins stale: after the first one there may be more.
            let pause = pauses.as_mut().and_then(Iterator::next);
            pauses.get_or_insert_with(retry_pauses);
            let logging_in = async {
                tokio::time::sleep(pause.unwrap_or_default()).await;
                self.log_in_after(login).await
            };
            match timeout_at(until, logging_in).await {
                Ok(Ok(())) => {}
                Ok(Err(fault)) if !fault.may_pass() => return Err(fault),
                // The request itself did nothing.
                _ => return Err(refused),
            }
        }
    }

    /// Sends a request, again as long as the endpoint that it met could do nothing with it and another one may.
    async fn send<T, F>(&self, request: impl Fn(&Client) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        // The dead ones of several endpoints refuse faster than the live one connects, and the balancer knows no better.
        let patience = if self.endpoints > 1 { self.request_timeout / 2 } else { Duration::ZERO };
        let started = Instant::now();
        loop {
            self.outage.turn(started + self.request_timeout / 2).await?;
            let mut met = None;
            for _ in 0..SENDS_AT_ONCE * self.endpoints {
                match request(&self.client).await.map_err(Fault::from) {
                    Err(fault) if fault.is_of_endpoint() => met = Some(fault),
                    Err(fault) if fault.effect == Effect::Unknown => return Err(fault),
                    served => {
                        self.outage.end();
                        return served;
                    }
                }
            }
            if let Some(fault) = met {
                self.outage.found(fault.clone());
                if started.elapsed() >= patience {
                    return Err(fault);
                }
            }
        }
    }

    /// The login that requests are sent with now.
    pub(crate) fn login(&self) -> LoginNumber {
        self.login.number()
    }

    /// Logs in, unless another request has done so since this login was refused.
    pub(crate) async fn log_in_after(&self, refused: LoginNumber) -> Result<(), Fault> {
        // The client's future borrows it.
        let log_in = || {
            self.send(|client| {
                let client = client.clone();
                async move { client.refresh_token().await }
            })
        };
        bounded(self.request_timeout, self.login.renew_after(refused, log_in)).await
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }
}

fn connect_options(config: &EtcdConfig) -> Result<ConnectOptions, Fault> {
    let options = ConnectOptions::new();
    match &config.tls {
        Some(tls) => with_tls(options, tls),
        None => Ok(options),
    }
}

/// Gives up waiting for the reply after this time; what the request did is unknown then.
pub(crate) async fn bounded<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    tokio::time::timeout(timeout, request).await.unwrap_or_else(|_| Err(Fault::no_reply()))
}
