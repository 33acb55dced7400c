//! Looking at a lock without taking part in it.

use async_trait::async_trait;
use lockkit_core::{
    FencingToken, LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
    limits::METADATA_BYTES_MAX,
};

use crate::{
    RedisBackend,
    error::Fault,
    keys::{LockKeys, parse_value},
    scripts::{self, Inspected},
    server::execute,
    topology::Listener,
};

/// Waiters that an inspection shows; a longer queue is cut off behind them.
pub const INSPECTED_WAITERS_MAX: usize = 500;

#[async_trait]
impl Admin for RedisBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let keys = self.config.layout().keys(name)?;
        let timeout = self.config.request_timeout;
        let answer = tokio::time::timeout(timeout, self.look(&keys)).await;
        let answer = answer.unwrap_or_else(|_| Err(Fault::no_reply()));
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
    async fn look(&self, keys: &LockKeys) -> Result<Inspected, Fault> {
        // A connection of its own: a kept one would belong to the runtime that first asked.
        let mut wire = self.config.connector().connect(Listener::deaf()).await?;
        let call = scripts::inspect(keys, INSPECTED_WAITERS_MAX, METADATA_BYTES_MAX);
        scripts::inspected(execute(&mut wire, &call).await?)
    }
}

/// The holder that has put this value there. The value of another program is the secret that releases its lock, so it is
/// never shown: the entry of such a holder is the lock's key.
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
