//! Stopping a service between its read and its write, for longer than its lock lives.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::{net::unix::pid_t, sync::watch, time};

use crate::ITEMS;

/// Sales before the stop: by then both services sell, and the other one has enough buyers left.
const SALES_BEFORE: usize = 50;

/// Longest time to wait for the other service to sell something.
const OTHER_SALE_MAX: Duration = Duration::from_secs(30);

/// Stops the first service that reads after [`SALES_BEFORE`] sales, once.
#[derive(Debug)]
pub(crate) struct Freeze {
    time: Duration,
    done: AtomicBool,
}

impl Freeze {
    /// Returns a freeze of this length: two ttls of the session.
    pub(crate) fn new(time: Duration) -> Self {
        Self { time, done: AtomicBool::new(false) }
    }

    /// Call this when a service has read the stock, before the answer is sent. A stopped service must be resumed by
    /// [`Frozen::thaw`].
    pub(crate) fn at_read(&self, service: pid_t, sales: watch::Receiver<usize>) -> Result<Option<Frozen>> {
        let sales_before = *sales.borrow();
        let in_full_swing = (SALES_BEFORE..ITEMS as usize).contains(&sales_before);
        if !in_full_swing || self.done.swap(true, Ordering::Relaxed) {
            return Ok(None);
        }
        let service = Pid::from_raw(service).context("a process id")?;
        kill_process(service, Signal::STOP)?;
        waitid(WaitId::Pid(service), WaitIdOptions::STOPPED)?;
        Ok(Some(Frozen { service, time: self.time, sales, sales_before }))
    }
}

/// A service that is stopped.
#[derive(Debug)]
pub(crate) struct Frozen {
    service: Pid,
    time: Duration,
    sales: watch::Receiver<usize>,
    sales_before: usize,
}

impl Frozen {
    /// Resumes the service when its time is over and the other service has sold something under a later grant.
    pub(crate) async fn thaw(mut self) -> Result<()> {
        time::sleep(self.time).await;
        let others = self.sales.wait_for(|sales| *sales > self.sales_before);
        let others = time::timeout(OTHER_SALE_MAX, others).await;
        // In any case, or the sale would never end.
        kill_process(self.service, Signal::CONT)?;
        others.context("nobody sold anything while a service was stopped")??;
        Ok(())
    }
}
