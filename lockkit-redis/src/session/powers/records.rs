//! Records: a string key per lock, written by a script that compares the value of the lock first.
//!
//! Failure cases:
//!
//! * The grant has ended: the script finds another value, or none, and writes nothing.
//! * A reply is lost: the outcome is unknown, and the caller repeats the request. A copy that arrives even later writes
//!   only while the same grant holds the lock.
//! * The server is at its memory limit: it refuses the write as `Unavailable`. (It would not be bounded as heartbeats
//!   are, which the scripts get through.)
//! * A failover loses the record where it had not been replicated, as it may lose the grant.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    LockName, Result,
    backend::{Grant, Records},
};

use super::wire::{read_record, write_record};
use crate::{error::RequestError, session::RedisSession};

#[async_trait]
impl Records for RedisSession {
    async fn read(&self, name: &LockName) -> Result<Option<String>> {
        self.check_open("read record", name)?;
        let call = read_record(&self.layout.keys(name)?);
        let answer = self.server.run(&call).await;
        let record = answer.and_then(|answer| Ok::<_, RequestError>(redis::from_redis_value(answer)?));
        record.map_err(|fault| fault.into_error("read record").with_lock(name))
    }

    async fn write(&self, grant: &Grant, record: &str, keep: Duration) -> Result<bool> {
        self.check_open("write record", grant.name())?;
        let call = write_record(grant, &self.layout.keys(grant.name())?, record, keep);
        let written = self.write_if_held(&call).await;
        written.map_err(|fault| fault.into_error("write record").with_lock(grant.name()))
    }
}
