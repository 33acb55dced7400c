//! A server without a network, for tests with a paused clock. Every request is recorded. A test may set a rule that
//! decides over requests; all others are executed on a [`Store`].

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use futures_util::stream;
use lockkit_core::support::lock;
use prost::{
    Message,
    bytes::{Buf, BufMut},
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::Instant,
};
use tonic::{
    ConnectError, Request, Response, Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, BoxStream, Service, StdError, http},
    server::Grpc,
    transport::{Endpoint, channel::Change},
};

use super::store::Store;
use crate::client::{Client, pb::etcdserverpb as pb};

/// etcd's limit for one transaction.
const OPERATIONS_MAX: usize = 128;

/// A request that the server has received.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The name of the method, such as `Txn`.
    pub(crate) method: String,
    message: Vec<u8>,
    pub(crate) at: Instant,
}

impl Call {
    pub(crate) fn is(&self, method: &str) -> bool {
        self.method == method
    }

    /// Parses the request of a read.
    fn range(&self) -> pb::RangeRequest {
        pb::RangeRequest::decode(&*self.message).unwrap()
    }

    /// Returns whether a read may be answered by any member.
    pub(crate) fn is_serializable(&self) -> bool {
        self.range().serializable
    }

    /// Returns how many keys a read returns at most.
    pub(crate) fn limit(&self) -> i64 {
        self.range().limit
    }

    /// Returns how many operations a transaction has if its compares hold.
    pub(crate) fn operations(&self) -> usize {
        pb::TxnRequest::decode(&*self.message).unwrap().success.len()
    }

    /// Returns the key of a new watch, and the revision from which on it is watched.
    pub(crate) fn watched(&self) -> Option<(Vec<u8>, i64)> {
        use pb::watch_request::RequestUnion::CreateRequest;
        match pb::WatchRequest::decode(&*self.message).unwrap().request_union? {
            CreateRequest(watch) => Some((watch.key, watch.start_revision)),
            _ => None,
        }
    }

    /// Returns whether a transaction puts a key if its compares hold.
    pub(crate) fn puts(&self) -> bool {
        use pb::request_op::Request::RequestPut;
        let txn = pb::TxnRequest::decode(&*self.message).unwrap();
        txn.success.iter().any(|operation| matches!(operation.request, Some(RequestPut(_))))
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// It is executed and answered.
    Served,
    /// It is executed, and the reply is lost.
    Unanswered,
    /// It is lost.
    Lost,
    /// There is no connection.
    NotSent,
    /// The server refuses it.
    Refused(tonic::Code, &'static str),
    /// It is executed, and answered as if the server refused it.
    ExecutedAndRefused(tonic::Code, &'static str),
}

type Rule = Box<dyn FnMut(&Call) -> Fate + Send>;

/// The server. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Inner>);

#[derive(Default)]
struct Inner {
    store: Mutex<Store>,
    rule: Mutex<Option<Rule>>,
    calls: Mutex<Vec<Call>>,
}

impl Script {
    /// Decides over all requests from now on.
    pub(crate) fn rule(&self, rule: impl FnMut(&Call) -> Fate + Send + 'static) {
        *lock(&self.0.rule) = Some(Box::new(rule));
    }

    /// Serves all requests from now on.
    pub(crate) fn serve(&self) {
        self.rule(|_| Fate::Served);
    }

    /// Returns the requests since the last call of this function.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *lock(&self.0.calls))
    }

    /// Returns how many requests of this method there were since [`take_calls`](Self::take_calls).
    pub(crate) fn count(&self, method: &str) -> usize {
        lock(&self.0.calls).iter().filter(|call| call.is(method)).count()
    }

    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        lock(&self.0.store).keys(prefix)
    }

    pub(crate) fn leases(&self) -> usize {
        lock(&self.0.store).leases.len()
    }

    /// Deletes a key, as an operator does.
    pub(crate) fn delete(&self, key: &str) {
        lock(&self.0.store).remove(key);
    }

    /// Puts a key without a lease, as another program does.
    pub(crate) fn put(&self, key: &str, value: &str) {
        self.put_leased(key, value, 0);
    }

    /// Puts a key with this lease, which need not exist.
    pub(crate) fn put_leased(&self, key: &str, value: &str, lease: i64) {
        let put = pb::PutRequest { key: key.into(), value: value.into(), lease, ..Default::default() };
        let request = Some(pb::request_op::Request::RequestPut(put));
        let txn = pb::TxnRequest { success: vec![pb::RequestOp { request }], ..Default::default() };
        lock(&self.0.store).txn(&txn);
    }

    /// Reports no further events.
    pub(crate) fn mute_watches(&self) {
        lock(&self.0.store).is_mute = true;
    }

    /// Ends all streams of watches.
    pub(crate) fn end_watches(&self) {
        lock(&self.0.store).end_watches();
    }

    fn fate(&self, method: &str, message: &[u8]) -> Fate {
        let call = Call { method: method.to_owned(), message: message.to_vec(), at: Instant::now() };
        let fate = lock(&self.0.rule).as_mut().map_or(Fate::Served, |rule| rule(&call));
        lock(&self.0.calls).push(call);
        fate
    }

    /// Executes a request; replies by this sender.
    fn execute(
        &self,
        method: &str,
        message: &[u8],
        replies: &UnboundedSender<Vec<u8>>,
    ) -> Result<(), Status> {
        fn parsed<M: Message + Default>(message: &[u8]) -> M {
            M::decode(message).unwrap()
        }
        let mut store = lock(&self.0.store);
        let reply = match method {
            "Range" => store.range(&parsed(message)).encode_to_vec(),
            "Txn" => {
                let txn: pb::TxnRequest = parsed(message);
                if txn.success.len() > OPERATIONS_MAX {
                    return Err(Status::invalid_argument("etcdserver: too many operations in txn request"));
                }
                store.txn(&txn).encode_to_vec()
            }
            "LeaseGrant" => store.grant(parsed::<pb::LeaseGrantRequest>(message).ttl).encode_to_vec(),
            "LeaseTimeToLive" => store.time_to_live(&parsed(message)).encode_to_vec(),
            "LeaseRevoke" if store.revoke(parsed::<pb::LeaseRevokeRequest>(message).id) => Vec::new(),
            "LeaseRevoke" => return Err(Status::not_found("etcdserver: requested lease not found")),
            "LeaseKeepAlive" => {
                let id = parsed::<pb::LeaseKeepAliveRequest>(message).id;
                let ttl = store.leases.get(&id).copied().unwrap_or(0);
                pb::LeaseKeepAliveResponse { ttl }.encode_to_vec()
            }
            "Authenticate" => pb::AuthenticateResponse { token: "token".to_owned() }.encode_to_vec(),
            "Lock" => {
                store.lock(&parsed(message));
                Vec::new()
            }
            "Watch" => {
                store.watch(parsed(message), replies);
                return Ok(());
            }
            other => panic!("a scripted server has no {other}"),
        };
        let _ = replies.send(reply);
        Ok(())
    }
}

/// A channel to a scripted server, or to none.
#[derive(Clone)]
pub(crate) struct Channel(Option<Script>);

impl Channel {
    /// As tonic's; a test that connects to an address reaches nobody.
    pub(crate) fn balance_channel<K>(capacity: usize) -> (Self, mpsc::Sender<Change<K, Endpoint>>) {
        (Self(None), mpsc::channel(capacity).0)
    }
}

impl Client {
    /// Returns a client of this server, with a login that it may renew.
    pub(crate) fn scripted(script: &Script) -> Self {
        let login = ("app".to_owned(), "secret".to_owned());
        Self::over(&Channel(Some(script.clone())), Some(login))
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = StdError;
    type Future = BoxFuture<Self::Response, StdError>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let script = self.0.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let not_sent = Arc::new(Mutex::new(script.is_none()));
            let handler = Handler { script: script.unwrap_or_default(), method, not_sent: not_sent.clone() };
            let response = Grpc::new(Raw).streaming(handler, request).await;
            if *lock(&not_sent) { Err(ConnectError("refused".into()).into()) } else { Ok(response) }
        })
    }
}

/// Answers one request, or those of one stream.
struct Handler {
    script: Script,
    method: String,
    not_sent: Arc<Mutex<bool>>,
}

impl Service<Request<Streaming<Vec<u8>>>> for Handler {
    type Response = Response<BoxStream<Vec<u8>>>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<Vec<u8>>>) -> Self::Future {
        let (script, method) = (self.script.clone(), self.method.clone());
        let not_sent = Arc::clone(&self.not_sent);
        Box::pin(async move {
            let mut requests = request.into_inner();
            let first = requests.message().await?.unwrap();
            let (sender, replies) = mpsc::unbounded_channel();
            match script.fate(&method, &first) {
                Fate::Served => script.execute(&method, &first, &sender)?,
                // The stream is open, and stays silent.
                Fate::Unanswered if method == "Watch" => {
                    return Ok(Response::new(Box::pin(stream::pending()) as BoxStream<_>));
                }
                Fate::Unanswered => {
                    script.execute(&method, &first, &sender)?;
                    std::future::pending::<()>().await;
                }
                Fate::Lost => std::future::pending().await,
                Fate::NotSent => {
                    *lock(&not_sent) = true;
                    return Err(Status::unavailable("not sent"));
                }
                Fate::Refused(code, text) => return Err(Status::new(code, text)),
                Fate::ExecutedAndRefused(code, text) => {
                    script.execute(&method, &first, &sender)?;
                    return Err(Status::new(code, text));
                }
            }
            // The sender of a watch is kept by the store alone, which can end the stream.
            let keeps = (method == "LeaseKeepAlive").then(|| sender.clone());
            let watch = (method == "Watch").then(|| sender.downgrade());
            drop(sender);
            let open = OpenStream { script, method, requests, replies, keeps, watch };
            Ok(Response::new(Box::pin(stream::unfold(open, OpenStream::next)) as BoxStream<_>))
        })
    }
}

/// The rest of a stream whose first request was executed.
struct OpenStream {
    script: Script,
    method: String,
    requests: Streaming<Vec<u8>>,
    replies: UnboundedReceiver<Vec<u8>>,
    keeps: Option<UnboundedSender<Vec<u8>>>,
    watch: Option<mpsc::WeakUnboundedSender<Vec<u8>>>,
}

impl OpenStream {
    /// Returns the next reply. A reply is sent before the next request is read.
    async fn next(mut self) -> Option<(Result<Vec<u8>, Status>, Self)> {
        let is_stream = self.keeps.is_some() || self.watch.is_some();
        loop {
            tokio::select! {
                biased;
                reply = self.replies.recv() => return Some((Ok(reply?), self)),
                request = self.requests.message(), if is_stream => {
                    let Ok(Some(message)) = request else { return None };
                    let open = self.watch.as_ref().map(mpsc::WeakUnboundedSender::upgrade);
                    let replies = open.unwrap_or_else(|| self.keeps.clone())?;
                    match self.script.fate(&self.method, &message) {
                        Fate::Served => {
                            if let Err(status) = self.script.execute(&self.method, &message, &replies) {
                                return Some((Err(status), self));
                            }
                        }
                        Fate::Refused(code, text) => return Some((Err(Status::new(code, text)), self)),
                        Fate::NotSent | Fate::ExecutedAndRefused(..) => return None,
                        Fate::Lost | Fate::Unanswered => {}
                    }
                }
            }
        }
    }
}

/// Messages as bytes.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(src.copy_to_bytes(src.remaining()).to_vec()))
    }
}
