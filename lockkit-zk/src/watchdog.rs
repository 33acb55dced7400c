//! Ends a session at the server: when the client closes it, when the server reports its end, and when its lease is
//! over.
//!
//! The client crate pings on its own. Without the watchdog, a session would outlive a keeper that hangs while the rest
//! of its process works, and its locks would stay held by nobody. So a session without proof of liveness for one ttl is
//! ended here; by then its holders no longer rely on it. A session that is abandoned earlier is only marked lost: the
//! keeper closes it after it has marked the holds lost.

use std::{sync::Arc, time::Duration};

use lockkit_core::support::SessionState;
use tracing::{debug, warn};
use zookeeper_client::StateWatcher;

use crate::{liveness::Liveness, wire::Connection};

/// Longest time between two checks of the clock: timers stop while the machine is suspended, the clock does not.
const CLOCK_CHECK_MAX: Duration = Duration::from_secs(1);

/// Watches one session until it is over.
pub(crate) async fn watch(
    mut connection_states: StateWatcher,
    state: SessionState,
    liveness: Arc<Liveness>,
    client: Connection,
) {
    loop {
        let left = liveness.left();
        if left.is_zero() {
            warn!("session ended: not renewed for a ttl");
            break;
        }
        tokio::select! {
            () = state.closed() => break,
            () = tokio::time::sleep(left.min(CLOCK_CHECK_MAX)) => {}
            connection_state = connection_states.changed() => {
                debug!(?connection_state, "connection state");
                if connection_state.is_terminated() {
                    break;
                }
            }
        }
    }
    state.mark_lost();
    client.end();
}
