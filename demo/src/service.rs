//! A service process: half of the buyers.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use lockkit::{Lock, LockGuard};
use tokio::{task::JoinSet, time::sleep};

use crate::{BUYERS, SERVICES, stock::Stock};

/// The environment variable for the URL of the lock store. No argument: the URL may hold a password, and arguments are public.
pub(crate) const BACKEND: &str = "LOCKKIT_BACKEND";

/// Times that a buyer comes back after the lock store was not available or a read or write was refused.
const TRIES: u32 = 10;

/// Runs this service's buyers; prints how many bought and how many were refused.
pub(crate) async fn run(socket: &Path, first_order: u32, lock: Option<Lock>) -> Result<()> {
    // A stopped process would outlive a demo that was interrupted.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let stock = Arc::new(Stock::connect(socket).await?);
    let mut buyers = JoinSet::new();
    for order in first_order..first_order + BUYERS / SERVICES {
        buyers.spawn(buy(order, Arc::clone(&stock), lock.clone()));
    }
    let (mut bought, mut refused) = (0, 0);
    while let Some(outcome) = buyers.join_next().await {
        if outcome?? { bought += 1 } else { refused += 1 }
    }
    println!("{bought} {refused}");
    Ok(())
}

/// Buys one teapot; false when they are sold out.
async fn buy(order: u32, stock: Arc<Stock>, lock: Option<Lock>) -> Result<bool> {
    for _ in 0..TRIES {
        let guard = match &lock {
            Some(lock) => match lock.acquire().await {
                Ok(guard) => Some(guard),
                Err(error) if error.is_temporary() => continue,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        let token = guard.as_ref().map(LockGuard::token);
        let Some(left) = stock.read(token).await? else {
            // The lock has passed to somebody else, who has read already.
            continue;
        };
        if left == 0 {
            return Ok(false);
        }
        sleep(Duration::from_micros(fastrand::u64(1000..=3000))).await;
        // No look at the guard here: the process can be stopped right after it.
        if stock.write(left - 1, order, token).await? {
            return Ok(true);
        }
        // The lock had passed to somebody else meanwhile: read the stock again.
    }
    bail!("order {order} failed {TRIES} times")
}
