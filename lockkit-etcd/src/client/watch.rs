//! Watches: many on one stream.

use futures_util::stream;
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{
    Connection, Error, KeyValue, ResponseHeader, Result, STREAM_REQUESTS_MAX, kv,
    pb::etcdserverpb::{
        WatchCancelRequest, WatchCreateRequest, WatchRequest, watch_client, watch_request::RequestUnion,
    },
};

pub(crate) use super::pb::{
    etcdserverpb::{WatchResponse, watch_create_request::FilterType as WatchFilterType},
    mvccpb::{Event, event::EventType},
};

/// Opens streams of watches.
#[derive(Clone)]
pub(crate) struct WatchClient(watch_client::WatchClient<Connection>);

impl WatchClient {
    pub(super) fn new(connection: Connection) -> Self {
        Self(watch_client::WatchClient::new(connection))
    }

    /// Opens a stream with this watch.
    pub(crate) async fn watch(
        &mut self,
        key: impl Into<Vec<u8>>,
        options: Option<WatchOptions>,
    ) -> Result<WatchStream> {
        let (requests, mut sent) = mpsc::channel(STREAM_REQUESTS_MAX);
        let mut sender = WatchRequestSender(requests);
        // Before the stream is opened: the server answers the opening only with the first reply.
        sender.watch(key, options).await?;
        let replies = self.0.watch(stream::poll_fn(move |cx| sent.poll_recv(cx))).await?;
        Ok(WatchStream { sender, replies: WatchResponseStream(replies.into_inner()) })
    }
}

/// What a watch reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchOptions {
    request: WatchCreateRequest,
    prefix: bool,
}

impl WatchOptions {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Watches all keys with this prefix.
    pub(crate) fn with_prefix(mut self) -> Self {
        self.prefix = true;
        self
    }

    /// Reports events from this revision on; 0: from now on.
    pub(crate) fn with_start_revision(mut self, revision: i64) -> Self {
        self.request.start_revision = revision;
        self
    }

    /// Leaves these events out.
    pub(crate) fn with_filters(mut self, filters: impl IntoIterator<Item = WatchFilterType>) -> Self {
        self.request.filters = filters.into_iter().map(i32::from).collect();
        self
    }

    /// Sets the id, which must not be in use on the stream.
    pub(crate) fn with_watch_id(mut self, id: i64) -> Self {
        self.request.watch_id = id;
        self
    }
}

/// A stream of watches.
#[derive(Debug)]
pub(crate) struct WatchStream {
    sender: WatchRequestSender,
    replies: WatchResponseStream,
}

impl WatchStream {
    /// Returns the next reply; `None` if the server has ended the stream.
    pub(crate) async fn message(&mut self) -> Result<Option<WatchResponse>> {
        self.replies.message().await
    }

    pub(crate) fn split(self) -> (WatchRequestSender, WatchResponseStream) {
        (self.sender, self.replies)
    }
}

/// The sending half of a stream.
#[derive(Debug)]
pub(crate) struct WatchRequestSender(mpsc::Sender<WatchRequest>);

impl WatchRequestSender {
    /// Adds a watch.
    pub(crate) async fn watch(
        &mut self,
        key: impl Into<Vec<u8>>,
        options: Option<WatchOptions>,
    ) -> Result<()> {
        let WatchOptions { request, prefix } = options.unwrap_or_default();
        let (key, range_end) = kv::range(key.into(), prefix);
        self.send(RequestUnion::CreateRequest(WatchCreateRequest { key, range_end, ..request })).await
    }

    /// Ends a watch.
    pub(crate) async fn cancel(&mut self, watch_id: i64) -> Result<()> {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id })).await
    }

    async fn send(&mut self, request: RequestUnion) -> Result<()> {
        let sent = self.0.send(WatchRequest { request_union: Some(request) }).await;
        sent.map_err(|_| Error::StreamEnded)
    }
}

#[cfg(test)]
impl WatchRequestSender {
    /// Returns a sender without a server, and a function that returns which watches were cancelled since its last call.
    pub(crate) fn recorded() -> (Self, impl FnMut() -> Vec<i64>) {
        let (requests, mut sent) = mpsc::channel::<WatchRequest>(1024);
        let cancelled = move || {
            let requests = std::iter::from_fn(|| sent.try_recv().ok()?.request_union);
            let cancelled = requests.filter_map(|request| match request {
                RequestUnion::CancelRequest(cancel) => Some(cancel.watch_id),
                _ => None,
            });
            cancelled.collect()
        };
        (Self(requests), cancelled)
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct WatchResponseStream(Streaming<WatchResponse>);

impl WatchResponseStream {
    /// Returns the next reply; `None` if the server has ended the stream.
    pub(crate) async fn message(&mut self) -> Result<Option<WatchResponse>> {
        Ok(self.0.message().await?)
    }
}

impl WatchResponse {
    pub(crate) fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }

    pub(crate) fn watch_id(&self) -> i64 {
        self.watch_id
    }

    /// Returns whether the reply confirms a watch.
    pub(crate) fn created(&self) -> bool {
        self.created
    }

    /// Returns whether the watch has ended.
    pub(crate) fn canceled(&self) -> bool {
        self.canceled
    }

    /// Returns the oldest revision that is not compacted, if the watch has ended for that reason; otherwise 0.
    pub(crate) fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    pub(crate) fn cancel_reason(&self) -> &str {
        &self.cancel_reason
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }
}

impl Event {
    pub(crate) fn event_type(&self) -> EventType {
        self.r#type()
    }

    pub(crate) fn kv(&self) -> Option<&KeyValue> {
        self.kv.as_ref()
    }
}
