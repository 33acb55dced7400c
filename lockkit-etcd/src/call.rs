//! Requests with a time limit, and the connection that carries them.
//!
//! The [client](crate::client) has no time limit of its own and retries nothing. While one of several endpoints is down,
//! or one member is cut from the others, a fixed share of all calls fails at once, because the balancer picks that
//! endpoint. Here every request ends within the configured time. A request that provably had no effect, because of the
//! endpoint that it reached, is sent again at once. A member that is cut from the others does not refuse: it is silent.
//! Requests of a heartbeat are therefore [sent again](Server::repeat) while the first copies wait.
//!
//! One of several endpoints may not be trusted while the others cannot be reached. That is [no lasting
//! failure](RequestError::or_earlier_that_may_pass): the others may be back soon.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use lockkit_core::{ErrorKind, backend::retry_pauses, support::bounded};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    EtcdConfig,
    client::{self, Client, ConnectOptions, GetOptions, GetResponse, Txn, TxnResponse},
    error::{Effect, RequestError},
    login::{LoginNumber, SharedLogin},
    outage::Outage,
    tls::with_tls,
    wire::{Revision, revision_of},
};

/// Pause between HTTP/2 pings. etcd closes a connection that is pinged more often than every 5 s, or without a request.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How often per endpoint a request without a connection is sent before it pauses. Once is not enough: a connection
/// that was refused fails the next request too, even if the server is back by then.
const SENDS_AT_ONCE: usize = 3;

/// How often a request of a heartbeat is sent while no reply comes, if there are several endpoints. If one of three is
/// silent, 1 in 81 of these requests reaches only that one.
const SENDS_PER_HEARTBEAT_STEP: u32 = 4;

/// A connection to etcd. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
    request_timeout: Duration,
    endpoints: usize,
    /// The endpoints, for errors.
    names: Arc<str>,
    login: Arc<SharedLogin>,
    outage: Arc<Outage>,
    highest_revision: Arc<AtomicI64>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("request_timeout", &self.request_timeout).finish_non_exhaustive()
    }
}

impl Server {
    /// Prepares the connection, which the first request opens: that is the login, if one is configured.
    pub(crate) async fn connect(config: &EtcdConfig) -> Result<Self, RequestError> {
        let options = connect_options(config)?
            .with_user(config.login.clone())
            .with_connect_timeout(config.request_timeout)
            .with_keep_alive(PING_INTERVAL, config.request_timeout);
        let server = Self::over(Client::connect(&config.endpoints, options)?, config);
        if config.login.is_some() {
            server.call(log_in).await?;
        }
        Ok(server)
    }

    /// Returns a connection that uses this client.
    pub(crate) fn over(client: Client, config: &EtcdConfig) -> Self {
        Self {
            client,
            request_timeout: config.request_timeout,
            endpoints: config.endpoints.len(),
            names: config.endpoints.join(", ").into(),
            login: Arc::default(),
            outage: Arc::default(),
            highest_revision: Arc::default(),
        }
    }

    /// Returns the version that the server reports; `None` if this user may not read it.
    pub(crate) async fn version(&self) -> Result<Option<String>, RequestError> {
        let request = |client: &Client| {
            let client = client.clone();
            async move { client.version().await }
        };
        none_if_denied(self.call(request).await)
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Result<TxnResponse, RequestError> {
        let request = |client: &Client| {
            let (mut kv, txn) = (client.kv_client(), txn.clone());
            async move { kv.txn(txn).await }
        };
        let answer = self.call(request).await?;
        self.saw(revision_of(answer.header())?);
        Ok(answer)
    }

    pub(crate) async fn range(
        &self,
        key: impl AsRef<[u8]>,
        options: GetOptions,
    ) -> Result<GetResponse, RequestError> {
        let key = key.as_ref();
        let request = |client: &Client| {
            let (mut kv, options) = (client.kv_client(), options.clone());
            async move { kv.get(key, Some(options)).await }
        };
        let answer = self.call(request).await?;
        self.saw(revision_of(answer.header())?);
        Ok(answer)
    }

    /// Returns the highest revision that a reply has shown. A later reply with a lower one comes from a member that
    /// lags behind, or from a store that was restored from a backup.
    pub(crate) fn highest_revision(&self) -> Revision {
        self.highest_revision.load(Ordering::Acquire)
    }

    pub(crate) fn saw(&self, revision: Revision) {
        self.highest_revision.fetch_max(revision, Ordering::AcqRel);
    }

    /// Sends a request until a server accepts its login. One time limit covers all attempts.
    pub(crate) async fn call<T, F>(&self, request: impl Fn(&Client) -> F) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, client::Error>>,
    {
        let until = Instant::now() + self.request_timeout;
        let mut pauses = None;
        loop {
            let login = self.login();
            let sent = self.send(&request);
            let refused = match timeout_at(until, sent).await {
                Ok(Err(fault)) if fault.effect == Effect::LoginStale => fault,
                Ok(answer) => return answer,
                Err(_) => return Err(RequestError::no_reply().at(&self.names)),
            };
            // Every change of a user or a role makes logins stale, so a new login may be stale too.
            let pause = pauses.as_mut().and_then(Iterator::next);
            pauses.get_or_insert_with(retry_pauses);
            let logging_in = async {
                tokio::time::sleep(pause.unwrap_or_default()).await;
                self.log_in_after(login).await
            };
            match timeout_at(until, logging_in).await {
                Ok(Ok(())) => {}
                Ok(Err(fault)) if !fault.is_transient() => return Err(fault),
                // The request had no effect.
                _ => return Err(refused),
            }
        }
    }

    /// Sends a request; retries while the endpoint that it reached could not serve it and another one may. Has no time
    /// limit of its own.
    pub(crate) async fn send<T, F>(&self, request: impl Fn(&Client) -> F) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, client::Error>>,
    {
        // Dead endpoints refuse faster than the live one connects, and the balancer does not prefer the live one.
        let retry_for = if self.endpoints > 1 { self.request_timeout / 2 } else { Duration::ZERO };
        let started = Instant::now();
        let mut endpoint_fault = None;
        loop {
            self.outage.turn(started + self.request_timeout / 2).await?;
            for _ in 0..SENDS_AT_ONCE * self.endpoints {
                let reply = request(&self.client).await;
                match reply.map_err(|error| RequestError::from(error).at(&self.names)) {
                    Err(fault) if fault.is_endpoint_failure() => {
                        endpoint_fault = Some(fault.or_earlier_that_may_pass(endpoint_fault.take()));
                    }
                    Err(fault) if fault.effect == Effect::Unknown => return Err(fault),
                    served => {
                        self.outage.end();
                        return served;
                    }
                }
            }
            if let Some(fault) = &endpoint_fault {
                self.outage.report(fault.clone());
                if started.elapsed() >= retry_for {
                    return Err(fault.clone());
                }
            }
        }
    }

    /// Sends a request that may be repeated, and again while no reply comes, because the member that was reached may be
    /// cut from the others. The first reply counts; a failure that another member may not report does not.
    pub(crate) async fn repeat<T, F>(
        &self,
        window: Duration,
        request: impl Fn() -> F,
    ) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, RequestError>>,
    {
        let sends = if self.endpoints > 1 { SENDS_PER_HEARTBEAT_STEP } else { 1 };
        let replies = async {
            let (mut waiting, mut failure, mut sent) = (FuturesUnordered::new(), RequestError::no_reply(), 0);
            loop {
                if sent < sends {
                    waiting.push(request());
                    sent += 1;
                }
                match timeout(window / sends, waiting.next()).await {
                    Ok(Some(Err(fault))) if fault.is_transient() => failure = fault,
                    Ok(Some(reply)) => return reply,
                    Ok(None) => return Err(failure),
                    Err(_) => {}
                }
            }
        };
        bounded(window, replies).await.map_err(|fault| fault.at(&self.names))
    }

    /// Returns the number of the login that requests use now.
    pub(crate) fn login(&self) -> LoginNumber {
        self.login.number()
    }

    /// Logs in, unless another request has done so since the server refused this login.
    pub(crate) async fn log_in_after(&self, refused: LoginNumber) -> Result<(), RequestError> {
        bounded(self.request_timeout, self.login.renew_after(refused, || self.send(log_in))).await
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }
}

/// Returns `None` for a denial: several releases of 3.5 and 3.6 report their version only to users with the role `root`,
/// if authentication is enabled. All other users can use locks there too.
fn none_if_denied<T>(answer: Result<T, RequestError>) -> Result<Option<T>, RequestError> {
    match answer {
        Err(fault) if fault.effect == Effect::Refused && fault.kind() == ErrorKind::Denied => Ok(None),
        answer => answer.map(Some),
    }
}

fn log_in(client: &Client) -> impl Future<Output = Result<(), client::Error>> + use<> {
    let client = client.clone();
    async move { client.log_in().await }
}

fn connect_options(config: &EtcdConfig) -> Result<ConnectOptions, RequestError> {
    let options = ConnectOptions::new();
    match &config.tls {
        Some(tls) => with_tls(options, tls),
        None => Ok(options),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tonic::{Code, Status};

    use super::*;
    use crate::{
        client::scripted::{Fate, Script},
        session::tests::{REQUEST, first, server},
    };

    fn answer(code: Code, text: &str) -> Result<Option<&'static str>, ErrorKind> {
        none_if_denied(Err(RequestError::from(Status::new(code, text)))).map_err(|fault| fault.kind())
    }

    #[test]
    fn version_that_a_user_may_not_read_is_no_fault() {
        assert_eq!(none_if_denied(Ok("3.6.9")).unwrap(), Some("3.6.9"));
        // By etcd 3.6.9, of a user without the role root, and without a login.
        assert_eq!(answer(Code::PermissionDenied, "etcdserver: permission denied"), Ok(None));
        assert_eq!(answer(Code::InvalidArgument, "etcdserver: user name is empty"), Ok(None));
        let stale = answer(Code::Unauthenticated, "etcdserver: invalid auth token");
        assert_eq!(stale, Err(ErrorKind::Denied));
        let silent = answer(Code::Unavailable, "etcdserver: request timed out");
        assert_eq!(silent, Err(ErrorKind::Unavailable));
    }

    /// Here a wrong address stands for a certificate that is not trusted.
    #[tokio::test(start_paused = true)]
    async fn failure_of_one_endpoint_lasts_only_if_that_of_the_others_does() {
        for (passing, kind) in [(0, ErrorKind::InvalidConfig), (1, ErrorKind::Unavailable)] {
            let sent = AtomicUsize::new(0);
            let request = |_: &Client| {
                let may_pass = sent.fetch_add(1, Ordering::Relaxed) < passing;
                async move {
                    tokio::time::sleep(REQUEST / 10).await;
                    Err::<(), _>(match may_pass {
                        true => client::Error::Status(Status::unavailable("etcdserver: no leader")),
                        false => client::Error::InvalidEndpoint,
                    })
                }
            };
            let server = server(&Script::default(), 2);
            assert_eq!(server.call(request).await.unwrap_err().kind(), kind);
        }
    }

    /// The server that refuses it is there.
    #[tokio::test(start_paused = true)]
    async fn refusal_ends_an_outage() {
        let script = Script::default();
        let server = server(&script, 1);
        let denied = Fate::Refused(Code::PermissionDenied, "etcdserver: permission denied");
        for fault in [first(3, "Range", Fate::NotSent), first(1, "Range", denied)] {
            script.rule(fault);
            server.range("x", GetOptions::new()).await.unwrap_err();
        }
        let since = Instant::now();
        server.range("x", GetOptions::new()).await.unwrap();
        assert_eq!(since.elapsed(), Duration::ZERO);
    }

    /// Its password has changed, which lasts until an operator acts.
    #[tokio::test(start_paused = true)]
    async fn request_whose_new_login_is_refused_is_refused_too() {
        let script = Script::default();
        script.rule(|call| match call.is("Authenticate") {
            true => Fate::Refused(Code::InvalidArgument, "etcdserver: authentication failed"),
            false => Fate::Refused(Code::Unauthenticated, "etcdserver: invalid auth token"),
        });
        let fault = server(&script, 1).range("x", GetOptions::new()).await.unwrap_err();
        assert_eq!((fault.kind(), fault.is_transient()), (ErrorKind::Denied, false));
        assert_eq!((script.count("Range"), script.count("Authenticate")), (1, 1));
    }

    /// The server has refused the login that the request was sent with, not the new one.
    #[tokio::test(start_paused = true)]
    async fn login_that_another_request_has_renewed_meanwhile_is_not_renewed_again() {
        let script = Script::default();
        let server = server(&script, 1);
        let sent = AtomicUsize::new(0);
        let request = |_: &Client| {
            let (is_first, other) = (sent.fetch_add(1, Ordering::Relaxed) == 0, server.clone());
            async move {
                if is_first {
                    other.log_in_after(other.login()).await.unwrap();
                    Err(client::Error::from(Status::unauthenticated("etcdserver: invalid auth token")))
                } else {
                    Ok(())
                }
            }
        };
        server.call(request).await.unwrap();
        assert_eq!((sent.load(Ordering::Relaxed), script.count("Authenticate")), (2, 1));
    }
}
