//! A wall clock for the processes that the suite starts.

use std::time::Duration;

use anyhow::Result;
use lockkit_conformance::WallClock;
use lockkit_testbed::ServerClock;

/// The testbed's clock.
#[derive(Debug)]
pub(crate) struct Stepped(pub(crate) ServerClock);

impl WallClock for Stepped {
    fn environment(&self) -> Vec<(String, String)> {
        let pairs = self.0.environment();
        let split = pairs.iter().filter_map(|pair| pair.split_once('='));
        split.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn step_forward(&self, by: Duration) -> Result<()> {
        self.0.step_forward(by)
    }

    fn step_back(&self, by: Duration) -> Result<()> {
        self.0.step_back(by)
    }
}
