//! The keys of one lock, and who holds it by them.

use lockkit_core::{LockName, Result};

use crate::{
    Form,
    call::Server,
    client::{GetOptions, GetResponse, KeyValue, SortOrder, SortTarget},
    error::RequestError,
    keys::{Layout, QueuePath},
};

/// Where the keys of one lock are.
pub(super) struct LockKeys {
    queue: Option<QueuePath>,
    /// The single key, or the guard key.
    exclusive: Option<String>,
}

/// The keys of one lock, as they were read. Two reads: the keys of both kinds need not be of one revision.
pub(super) struct FoundKeys {
    pub(super) queue: Option<QueuePath>,
    pub(super) queued: Vec<KeyValue>,
    has_guard: bool,
    exclusive: Option<KeyValue>,
}

/// The holder of a lock.
pub(super) enum Holder<'a> {
    /// A program that created the single key or the guard key, and is not first in our queue.
    Exclusive(&'a KeyValue),
    /// The first in the queue. The creation of `decides` was its grant; `None` as long as it waits for its guard key.
    Queued { first: &'a KeyValue, decides: Option<&'a KeyValue> },
}

impl LockKeys {
    pub(super) fn of(layout: &Layout, name: &LockName) -> Result<Self> {
        if layout.shape.form == Form::Single {
            return Ok(Self { queue: None, exclusive: Some(layout.single(name)?.as_str().to_owned()) });
        }
        let queue = layout.queue(name)?;
        Ok(Self { exclusive: layout.guard(name, &queue)?, queue: Some(queue) })
    }

    /// Reads the keys, at most this many of the queue.
    pub(super) async fn read(&self, server: &Server, queued_max: i64) -> Result<FoundKeys, RequestError> {
        let exclusive = match &self.exclusive {
            Some(key) => read(server, key, GetOptions::new()).await?.kvs().first().cloned(),
            None => None,
        };
        let queued = match &self.queue {
            Some(queue) => {
                let oldest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
                read(server, queue.as_str(), oldest.with_limit(queued_max)).await?.kvs
            }
            None => Vec::new(),
        };
        Ok(FoundKeys { queue: self.queue.clone(), queued, has_guard: self.exclusive.is_some(), exclusive })
    }
}

impl FoundKeys {
    pub(super) fn holder(&self) -> Option<Holder<'_>> {
        match (self.queued.first(), &self.exclusive) {
            (Some(first), None) if self.has_guard => Some(Holder::Queued { first, decides: None }),
            (Some(first), None) => Some(Holder::Queued { first, decides: Some(first) }),
            (Some(first), Some(guard)) if guard.lease() == first.lease() => {
                Some(Holder::Queued { first, decides: Some(guard) })
            }
            // Another program's: our first waits for it.
            (_, Some(key)) => Some(Holder::Exclusive(key)),
            (None, None) => None,
        }
    }
}

impl<'a> Holder<'a> {
    /// Returns the key that an inspection shows.
    pub(super) fn entry(&self) -> &'a KeyValue {
        match self {
            Self::Exclusive(kv) | Self::Queued { first: kv, .. } => kv,
        }
    }

    /// Returns those in the queue that wait.
    pub(super) fn waiters<'q>(&self, queued: &'q [KeyValue]) -> &'q [KeyValue] {
        match (self, queued) {
            (Self::Queued { .. }, [_, waiters @ ..]) => waiters,
            _ => queued,
        }
    }
}

async fn read(server: &Server, key: &str, options: GetOptions) -> Result<GetResponse, RequestError> {
    match server.range(key, options.clone()).await {
        // Foreign values may be longer than a message may be; read the keys only.
        Err(fault) if !fault.is_transient() => server.range(key, options.with_keys_only()).await,
        answer => answer,
    }
}
