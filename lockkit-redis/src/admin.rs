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
        Ok(Inspection {
            holder: (!value.is_empty()).then(|| holder(&value, &metadata)),
            waiters: waiters
                .iter()
                .map(|(claim, metadata)| Contender {
                    entry: String::from_utf8_lossy(claim).into_owned(),
                    token: None,
                    metadata: Metadata::from_json(metadata),
                })
                .collect(),
        })
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

/// Whoever has put this value there.
fn holder(value: &[u8], metadata: &[u8]) -> Contender {
    let value = String::from_utf8_lossy(value);
    match parse_value(&value) {
        Some((claim, token)) => Contender {
            entry: claim.to_string(),
            token: Some(FencingToken::new(token)),
            metadata: Metadata::from_json(metadata),
        },
        None => Contender { entry: value.into_owned(), token: None, metadata: None },
    }
}
