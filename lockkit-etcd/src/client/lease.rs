//! Leases.

use futures_util::stream;
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{
    Connection, Error, ResponseHeader, Result, STREAM_REQUESTS_MAX,
    pb::etcdserverpb::{
        LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
        LeaseTimeToLiveRequest, lease_client,
    },
};

pub(crate) use super::pb::etcdserverpb::{LeaseGrantResponse, LeaseTimeToLiveResponse};

/// Sends requests about leases.
#[derive(Clone)]
pub(crate) struct LeaseClient(lease_client::LeaseClient<Connection>);

impl LeaseClient {
    pub(super) fn new(connection: Connection) -> Self {
        Self(lease_client::LeaseClient::new(connection))
    }

    /// Requests a lease of at least this lifetime, in seconds. The server chooses its id.
    pub(crate) async fn grant(&mut self, ttl: i64) -> Result<LeaseGrantResponse> {
        Ok(self.0.lease_grant(LeaseGrantRequest { ttl, id: 0 }).await?.into_inner())
    }

    /// Ends a lease; the server deletes its keys.
    pub(crate) async fn revoke(&mut self, id: i64) -> Result<()> {
        self.0.lease_revoke(LeaseRevokeRequest { id }).await?;
        Ok(())
    }

    pub(crate) async fn time_to_live(
        &mut self,
        id: i64,
        options: Option<LeaseTimeToLiveOptions>,
    ) -> Result<LeaseTimeToLiveResponse> {
        let LeaseTimeToLiveOptions { keys } = options.unwrap_or_default();
        Ok(self.0.lease_time_to_live(LeaseTimeToLiveRequest { id, keys }).await?.into_inner())
    }

    /// Opens a stream of renewals, sends the first one and awaits its reply.
    pub(crate) async fn keep_alive(&mut self, id: i64) -> Result<(LeaseKeeper, LeaseKeepAliveStream)> {
        let (requests, mut sent) = mpsc::channel(STREAM_REQUESTS_MAX);
        let mut keeper = LeaseKeeper { id, requests };
        // Before the stream is opened: the server answers the opening only with the first reply.
        keeper.keep_alive().await?;
        let replies = self.0.lease_keep_alive(stream::poll_fn(move |cx| sent.poll_recv(cx))).await?;
        let mut replies = LeaseKeepAliveStream(replies.into_inner());
        match replies.message().await? {
            Some(reply) if reply.ttl > 0 => Ok((keeper, replies)),
            Some(_) => Err(Error::LeaseNotFound),
            None => Err(Error::StreamEnded),
        }
    }
}

/// What a request about a lease returns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseTimeToLiveOptions {
    keys: bool,
}

impl LeaseTimeToLiveOptions {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Asks also for the keys that are attached to the lease.
    pub(crate) fn with_keys(mut self) -> Self {
        self.keys = true;
        self
    }
}

impl LeaseGrantResponse {
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Returns the granted lifetime in seconds.
    pub(crate) fn ttl(&self) -> i64 {
        self.ttl
    }
}

impl LeaseTimeToLiveResponse {
    pub(crate) fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }

    /// Returns the remaining whole seconds; -1 for a lease that does not exist.
    pub(crate) fn ttl(&self) -> i64 {
        self.ttl
    }

    pub(crate) fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }
}

impl LeaseKeepAliveResponse {
    /// Returns the new lifetime in seconds; not positive if the lease has ended.
    pub(crate) fn ttl(&self) -> i64 {
        self.ttl
    }
}

/// The sending half of a stream of renewals.
#[derive(Debug)]
pub(crate) struct LeaseKeeper {
    id: i64,
    requests: mpsc::Sender<LeaseKeepAliveRequest>,
}

impl LeaseKeeper {
    pub(crate) async fn keep_alive(&mut self) -> Result<()> {
        let sent = self.requests.send(LeaseKeepAliveRequest { id: self.id }).await;
        sent.map_err(|_| Error::StreamEnded)
    }
}

/// The receiving half of a stream of renewals.
#[derive(Debug)]
pub(crate) struct LeaseKeepAliveStream(Streaming<LeaseKeepAliveResponse>);

impl LeaseKeepAliveStream {
    /// Returns the next reply; `None` if the server has ended the stream.
    pub(crate) async fn message(&mut self) -> Result<Option<LeaseKeepAliveResponse>> {
        Ok(self.0.message().await?)
    }
}
