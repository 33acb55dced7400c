//! What ends a session at the server: its client's wish, the server's own word, and silence.
//!
//! The client crate pings by itself, so that a session would outlive a client that renews it no more: a keeper that hangs, while
//! the rest of its process is well. Its locks would be nobody's and still held. So a session that nothing has proved alive for
//! a ttl is ended here; whoever held something in it has stopped to believe in it by then. One that is given up before
//! is only told to be over: the keeper closes it, when it has told those who hold something in it.

use std::time::Duration;

use tracing::{debug, warn};
use zookeeper_client::StateWatcher;

use crate::{call::Connection, life::Life, proof::Proof};

/// Watches over one session until it is over.
pub(crate) struct Watchdog {
    pub(crate) states: StateWatcher,
    pub(crate) life: Life,
    pub(crate) proof: std::sync::Arc<Proof>,
    pub(crate) client: Connection,
}

impl Watchdog {
    pub(crate) async fn watch(mut self) {
        loop {
            let left = self.proof.left();
            if left.is_zero() {
                warn!("a session that was not renewed for a ttl is given up");
                break;
            }
            tokio::select! {
                () = self.life.closed() => break,
                () = tokio::time::sleep(left.min(LOOK_MAX)) => {}
                state = self.states.changed() => {
                    debug!(?state, "session state");
                    if state.is_terminated() {
                        break;
                    }
                }
            }
        }
        self.life.lose();
        self.client.end();
    }
}

/// Longest time between two looks at the clock: timers stop while the machine is suspended, the clock does not.
const LOOK_MAX: Duration = Duration::from_secs(1);
