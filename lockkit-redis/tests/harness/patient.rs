//! Bare connections of the client crate that outlast a stall of a busy machine.

use redis::AsyncConnectionConfig;

/// Returns a configuration without time limits. Those of the client crate are half a second for an answer, and one to
/// connect.
pub(crate) fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None)
}
