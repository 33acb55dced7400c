//! Independent Redis masters.

use anyhow::Result;

use super::{
    Redis, ServerClock,
    nodes::{endpoints, launch_all},
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

    /// Returns the master with this number, which is less than [`len`](Self::len).
    pub fn node(&self, number: usize) -> &Redis {
        &self.nodes[number]
    }

    /// Returns the master with this number, to be killed, restarted or wiped.
    pub fn node_mut(&mut self, number: usize) -> &mut Redis {
        &mut self.nodes[number]
    }

    /// Returns how many masters there are.
    #[expect(clippy::len_without_is_empty, reason = "there are masters")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns address and port of each master, joined by commas.
    pub fn endpoints(&self) -> String {
        endpoints(&self.nodes)
    }
}
