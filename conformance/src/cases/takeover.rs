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
    let take_over = async || {
        let Takeover { bounds, took } = take_over().await?;
        let documented = cx.harness().expiry_delay().map(|delay| bounds.documented_takeover(delay));
        Ok((took, documented.unwrap_or_else(|| bounds.takeover())))
    };
    let took = quickest("later than documented: the next client waited", take_over).await?;
    cx.publish("takeover [s]", took.as_secs_f64());
    Ok(())
}

/// Repeats an attempt, which returns how long it took and may take, until one is in time.
pub(super) async fn quickest(
    late: &str,
    attempt: impl AsyncFn() -> Result<(Duration, Duration)>,
) -> Result<Duration> {
    let mut all = Vec::new();
    for _ in 0..TRIES {
        let (took, bound) = attempt().await?;
        if took <= bound {
            return Ok(took);
        }
        all.push(took);
    }
    bail!("{late} {all:?}")
}
