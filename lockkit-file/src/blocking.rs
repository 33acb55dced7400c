//! File operations on threads that may block.

use lockkit_core::{Error, ErrorKind, Result};

/// Runs file operations on a thread that may block. They run to their end even when this future is dropped; what they
/// answer is then dropped too, which frees a lock that they took.
pub(crate) async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(cause) if cause.is_panic() => {
            Err(Error::new(ErrorKind::Unexpected, operation).with_source(cause))
        }
        Err(_) => Err(Error::new(ErrorKind::Closed, operation).with_message("the runtime has ended")),
    }
}
