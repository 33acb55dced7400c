//! What servers that belong together have in common.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Redis;

/// Longest time until servers are together as they shall be: votes that are split are repeated after ten seconds, and
/// a Sentinel that stood still decides nothing for thirty.
const WAIT_MAX: Duration = Duration::from_secs(180);

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
    wait_for(what, || Ok(is_so()?.then_some(())))
}

/// Waits until there is something; an error means that there is nothing yet.
pub(super) fn wait_for<T>(what: &str, look: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        let found = look();
        if let Ok(Some(found)) = found {
            return Ok(found);
        }
        if started.elapsed() > WAIT_MAX {
            found.with_context(|| format!("it does not come about that {what}"))?;
            bail!("it does not come about that {what}");
        }
        std::thread::sleep(WAIT_POLL);
    }
}
