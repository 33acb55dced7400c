//! What a store brings along.

use anyhow::Result;
use async_trait::async_trait;

use crate::usage::Usage;

/// A running server and the ways to lock in it.
pub trait Store: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Versions, and how durable it is: a line of the report each.
    fn describes(&self) -> Vec<(String, String)>;

    /// The rows; the first is what the others are compared with.
    fn rows(&self) -> Vec<Box<dyn Row>>;

    /// What the server has used so far.
    ///
    /// # Errors
    ///
    /// When it does not say.
    fn usage(&self) -> Result<Usage>;
}

/// One way to lock.
#[async_trait]
pub trait Row: Send + Sync {
    /// Its name in the report.
    fn name(&self) -> &'static str;

    /// A client with a connection of its own, which will contend for this lock.
    ///
    /// # Errors
    ///
    /// When it cannot connect.
    async fn contender(&self, lock: &str) -> Result<Box<dyn Contender>>;
}

/// One client that takes a lock again and again.
#[async_trait]
pub trait Contender: Send {
    /// Waits for the lock.
    ///
    /// # Errors
    ///
    /// When the store fails.
    async fn acquire(&mut self) -> Result<()>;

    /// Gives it back.
    ///
    /// # Errors
    ///
    /// When the store fails.
    async fn release(&mut self) -> Result<()>;

    /// Says goodbye, so that nothing of it is left when the next row runs.
    ///
    /// # Errors
    ///
    /// When the store fails.
    async fn close(self: Box<Self>) -> Result<()>;
}
