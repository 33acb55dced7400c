//! What a store implements to be measured.

use anyhow::Result;
use async_trait::async_trait;

use crate::usage::Usage;

/// A running server and the locks to measure on it.
pub trait Store: Send + Sync {
    /// Returns its name on the command line.
    fn name(&self) -> &'static str;

    /// Returns the conditions of the measurement, such as version and durability: a line of the report each.
    fn conditions(&self) -> Vec<(String, String)>;

    /// Returns the rows; the others are compared with the first.
    fn rows(&self) -> Vec<Box<dyn Row>>;

    /// Returns what the server has used so far.
    ///
    /// # Errors
    ///
    /// When the server does not report it.
    fn usage(&self) -> Result<Usage>;
}

/// A way to lock: lockkit, another lock, or bare requests.
#[async_trait]
pub trait Row: Send + Sync {
    /// Returns its name in the report.
    fn name(&self) -> &'static str;

    /// Makes a client with its own connection, which will contend for this lock.
    ///
    /// # Errors
    ///
    /// When it cannot connect.
    async fn contender(&self, lock: &str) -> Result<Box<dyn Contender>>;
}

/// One client that acquires a lock repeatedly.
#[async_trait]
pub trait Contender: Send {
    /// Waits for the lock.
    ///
    /// # Errors
    ///
    /// When the store fails.
    async fn acquire(&mut self) -> Result<()>;

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// When the store fails.
    async fn release(&mut self) -> Result<()>;

    /// Closes the client, so that nothing of it remains when the next row runs.
    ///
    /// # Errors
    ///
    /// When the store fails.
    async fn close(self: Box<Self>) -> Result<()>;
}
