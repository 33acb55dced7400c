//! What all groups of servers need.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::Redis;
use crate::wait::poll;

/// Longest time until a group of servers reaches an expected state. A split vote is repeated after ten seconds, and a
/// Sentinel that was frozen decides nothing for thirty.
const WAIT_MAX: Duration = Duration::from_secs(180);

/// Pause between two checks of the state.
const WAIT_POLL: Duration = Duration::from_millis(10);

/// How tests and the other files reach the `nodes` of a group.
macro_rules! has_numbered_nodes {
    ($group:ty) => {
        impl $group {
            /// Returns the node with this number, which is less than [`len`](Self::len).
            pub fn node(&self, number: usize) -> &Redis {
                &self.nodes[number]
            }

            /// Returns the node with this number, to be killed or restarted.
            pub fn node_mut(&mut self, number: usize) -> &mut Redis {
                &mut self.nodes[number]
            }

            /// Returns all nodes, in the order of their numbers.
            pub fn nodes(&self) -> &[Redis] {
                &self.nodes
            }

            /// Returns how many nodes there are.
            #[expect(clippy::len_without_is_empty, reason = "a group has nodes")]
            pub fn len(&self) -> usize {
                self.nodes.len()
            }
        }
    };
}
pub(super) use has_numbered_nodes;

/// The nodes that are neither killed nor frozen, with their numbers.
pub(super) fn running(nodes: &[Redis]) -> impl Iterator<Item = (usize, &Redis)> {
    nodes.iter().enumerate().filter(|(_, node)| !node.is_silent())
}

/// Starts all of them at the same time.
pub(super) fn launch_all(nodes: &mut [Redis]) -> Result<()> {
    nodes.iter_mut().try_for_each(Redis::launch)?;
    nodes.iter().try_for_each(Redis::wait_until_up)
}

/// Address and port of each, joined by commas.
pub(super) fn endpoints(nodes: &[Redis]) -> String {
    nodes.iter().map(Redis::endpoint).collect::<Vec<_>>().join(",")
}

/// Waits until `condition` is true; an error of it counts as false. `what` is the condition in words.
pub(super) fn wait_until(what: &str, condition: impl Fn() -> Result<bool>) -> Result<()> {
    wait_for(what, || Ok(condition()?.then_some(())))
}

/// Waits until `look` returns a value; an error of it counts as no value. `what` is the awaited state in words.
pub(super) fn wait_for<T>(what: &str, look: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let mut last_error = None;
    let found = poll(WAIT_MAX, WAIT_POLL, || {
        let looked = look();
        last_error = None;
        looked.unwrap_or_else(|error| {
            last_error = Some(error);
            None
        })
    });
    match (found, last_error) {
        (Some(found), _) => Ok(found),
        (None, Some(error)) => Err(error).with_context(|| format!("never reached: {what}")),
        (None, None) => Err(anyhow!("never reached: {what}")),
    }
}
