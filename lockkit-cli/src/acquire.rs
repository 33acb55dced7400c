//! The wait for the lock.

use std::time::Duration;

use lockkit::{LockClient, LockGuard, LockName, backend::Inspection};
use tokio::time::timeout;

use crate::{
    exit::{Failure, NOT_ACQUIRED, USAGE},
    held::Held,
    who::describe,
};

/// Longest time that a look at the holder delays the answer.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// Acquires the lock: within `patience` (zero: asks once), or however long it takes. Refuses a lock that a
/// `lockkit run` around this process holds, in the store of this identity.
///
/// # Cancel safety
///
/// Dropping the future gives the claim up; closing the client waits until it is withdrawn.
pub(crate) async fn acquire(
    client: &LockClient,
    name: &LockName,
    patience: Option<Duration>,
    held: &Held,
    store: &str,
) -> Result<LockGuard, Failure> {
    if held.names(store, name) {
        let holder = client.inspect(name.as_str()).await?;
        if held.is_holder(store, name, &holder) {
            let message = format!("lock {:?} is held by the `lockkit run` around this one", name.as_str());
            return Err(Failure::new(USAGE, message));
        }
    }
    let lock = client.lock(name.as_str())?;
    let (guard, within) = match patience {
        None => (Some(lock.acquire().await?), String::new()),
        Some(Duration::ZERO) => (lock.try_acquire().await?, " at once".into()),
        Some(patience) => (lock.acquire_timeout(patience).await?, " in time".into()),
    };
    match guard {
        Some(guard) => Ok(guard),
        None => {
            let holder = timeout(LOOK_MAX, client.inspect(name.as_str())).await;
            let holder = holder.ok().and_then(Result::ok).unwrap_or_default();
            let message = format!("lock {:?} not acquired{within}: {}", name.as_str(), held_by(&holder));
            Err(Failure::new(NOT_ACQUIRED, message))
        }
    }
}

/// Who is in the way, in words.
fn held_by(found: &Inspection) -> String {
    match &found.holder {
        Some(holder) => format!("held by {}", describe(holder)),
        None => "its holder cannot be told, or has just ended".into(),
    }
}
