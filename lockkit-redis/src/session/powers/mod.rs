//! What a session can do besides locking: [elections](elections), [records](records) and [pins](pins).

mod elections;
mod observers;
mod pins;
mod records;
mod wire;

#[cfg(feature = "_fuzzing")]
pub(crate) use self::wire::parse_leader;
pub(crate) use self::{observers::Observers, pins::Pin};
use super::RedisSession;
use crate::{error::RequestError, wire::Call};

impl RedisSession {
    /// Executes a script that writes if a grant holds its lock, and returns whether it does. What the script wrote
    /// counts as a grant does: when enough replicas have acknowledged it.
    async fn write_if_held(&self, call: &Call) -> Result<bool, RequestError> {
        match &self.replicas {
            Some(replicas) => replicas.write_if_held(call).await,
            None => Ok(redis::from_redis_value(self.server.run(call).await?)?),
        }
    }
}
