//! Inspection of a lock without a session.

use async_trait::async_trait;
use lockkit_core::{
    FencingToken, LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
    limits::METADATA_BYTES_MAX,
};

use crate::{
    RedisBackend,
    error::RequestError,
    keys::{LockKeys, parse_value},
    server::execute,
    topology::PushHandler,
    wire::{self, Inspected},
};

/// Waiters that an inspection returns; the rest of a longer queue is left out.
pub const INSPECTED_WAITERS_MAX: usize = 500;

#[async_trait]
impl Admin for RedisBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let keys = self.config.layout().keys(name)?;
        let timeout = self.config.request_timeout;
        let answer = tokio::time::timeout(timeout, self.query(&keys)).await;
        let answer = answer.unwrap_or_else(|_| Err(RequestError::no_reply()));
        let (value, metadata, waiters) =
            answer.map_err(|fault| fault.into_error("inspect").with_lock(name))?;
        let waiter = |(claim, metadata): &(Vec<u8>, Vec<u8>)| {
            Contender::new(String::from_utf8_lossy(claim), None, Metadata::from_json(metadata))
        };
        let holder = (!value.is_empty()).then(|| holder(&keys, &value, &metadata));
        Ok(Inspection::new(holder, waiters.iter().map(waiter).collect()))
    }
}

impl RedisBackend {
    async fn query(&self, keys: &LockKeys) -> Result<Inspected, RequestError> {
        // A new connection: one that is kept would belong to the runtime of the first caller.
        let mut connection = self.config.connector().connect(PushHandler::ignore_all()).await?;
        let call = wire::inspect(keys, INSPECTED_WAITERS_MAX, METADATA_BYTES_MAX);
        wire::parse_inspection(execute(&mut connection, &call).await?)
    }
}

/// Returns the holder that wrote this value. The value of another program is the secret that releases its lock, so it
/// is never shown: such a holder appears by the lock's key.
fn holder(keys: &LockKeys, value: &[u8], metadata: &[u8]) -> Contender {
    let value = String::from_utf8_lossy(value);
    match parse_value(&value) {
        Some((claim, token)) => {
            let token = FencingToken::new(token);
            Contender::new(claim.to_string(), Some(token), Metadata::from_json(metadata))
        }
        None => Contender::new(keys.lock(), None, None),
    }
}
