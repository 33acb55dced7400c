//! Independent Redis masters.

use anyhow::Result;

use super::{
    Redis, ServerClock,
    nodes::{endpoints, has_numbered_nodes, launch_all},
};

/// Independent Redis masters, for locks that live on a majority of them.
///
/// ```no_run
/// let mut masters = lockkit_testbed::RedisMasters::start(3)?;
/// masters.node_mut(0).kill()?; // also pause and resume
/// masters.node_mut(0).restart()?; // with its data
/// masters.node_mut(0).wipe()?; // without
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct RedisMasters {
    nodes: Vec<Redis>,
}

has_numbered_nodes!(RedisMasters);

impl RedisMasters {
    /// Starts `count` masters, and waits until all answer.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`].
    pub fn start(count: usize) -> Result<Self> {
        Self::start_with(count, &[])
    }

    /// As [`start`](Self::start), with more arguments, such as `--appendonly no`.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`].
    pub fn start_with(count: usize, arguments: &[&str]) -> Result<Self> {
        Self::launch((0..count).map(|_| Redis::prepare(arguments)).collect::<Result<_>>()?)
    }

    /// Starts one master on each of these clocks, and waits until all answer.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`].
    pub fn start_on(clocks: &[ServerClock]) -> Result<Self> {
        Self::launch(clocks.iter().map(Redis::prepare_on).collect::<Result<_>>()?)
    }

    fn launch(mut nodes: Vec<Redis>) -> Result<Self> {
        launch_all(&mut nodes)?;
        Ok(Self { nodes })
    }

    /// Returns address and port of each master, joined by commas.
    pub fn endpoints(&self) -> String {
        endpoints(&self.nodes)
    }
}
