//! What servers that belong together have in common.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Redis;

/// Longest time until servers are together as they shall be.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Pause between two looks at them.
const WAIT_POLL: Duration = Duration::from_millis(10);

/// Starts all of them side by side.
pub(super) fn launch_all(nodes: &mut [Redis]) -> Result<()> {
    nodes.iter_mut().try_for_each(Redis::launch)?;
    nodes.iter().try_for_each(Redis::wait_until_up)
}

/// Address and port of each, joined by commas.
pub(super) fn endpoints(nodes: &[Redis]) -> String {
    nodes.iter().map(Redis::endpoint).collect::<Vec<_>>().join(",")
}

/// Waits until it is so; an error means that it is not so yet.
pub(super) fn wait_until(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    loop {
        let so = is_so();
        if matches!(so, Ok(true)) {
            return Ok(());
        }
        if started.elapsed() > WAIT_MAX {
            so.with_context(|| format!("it does not come about that {what}"))?;
            bail!("it does not come about that {what}");
        }
        std::thread::sleep(WAIT_POLL);
    }
}
