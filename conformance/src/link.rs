//! The connection of one client, which its harness can disturb.

use std::fmt::Debug;

use anyhow::Result;
use async_trait::async_trait;

use crate::{AnyBackend, LinkFault};

/// One client's connection to the store.
///
/// # Cancel safety
///
/// The suite drives every future of this trait to its end.
#[async_trait]
pub trait ClientLink: Debug + Send + Sync {
    /// Returns a backend whose requests and replies use this connection.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    fn backend(&self) -> Result<AnyBackend>;

    /// Disturbs the connection from now on, but not those of other links. Where each case has its own store, all its
    /// links may be disturbed; then a case uses no other client meanwhile.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    async fn inflict(&self, fault: LinkFault) -> Result<()>;

    /// Ends every disturbance. What was held back is delivered.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    async fn heal(&self) -> Result<()>;
}
