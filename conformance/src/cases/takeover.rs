//! Takeovers from dead clients, compared with the bound that the backend documents.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{Bounds, context::Cx};

/// A busy machine may delay some of them.
const TRIES: usize = 3;

/// How long a dead client delayed the next one.
pub(super) struct Takeover {
    /// The bounds of the dead client.
    pub(super) bounds: Bounds,
    /// Since the client's death, or later.
    pub(super) took: Duration,
}

/// Checks that one of several takeovers is within the documented bound.
pub(super) async fn is_in_time(cx: &Cx, take_over: impl AsyncFn() -> Result<Takeover>) -> Result<()> {
    let mut late = Vec::new();
    for _ in 0..TRIES {
        let Takeover { bounds, took } = take_over().await?;
        let documented = cx.harness().expiry_delay().map(|delay| bounds.documented_takeover(delay));
        if took <= documented.unwrap_or_else(|| bounds.takeover()) {
            cx.publish("takeover [s]", took.as_secs_f64());
            return Ok(());
        }
        late.push(took);
    }
    bail!("later than documented: the next client waited {late:?}")
}
