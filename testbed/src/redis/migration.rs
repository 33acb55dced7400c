//! The migration of a slot between nodes of a cluster.

use anyhow::{Result, ensure};

use super::{Redis, RedisCluster, nodes::running};

/// Longest time for the keys of one step, in milliseconds.
const MOVE_MAX_MS: &str = "10000";

/// Most keys moved in one step.
const KEYS_MAX: &str = "1000";

/// A slot that is migrating from one node of a cluster to another. The source redirects clients that ask for a key that
/// it no longer has (`ASK`); the target answers only clients that say that they were redirected (`ASKING`).
///
/// Dropping the value leaves the slot in this state.
///
/// ```no_run
/// # let cluster = lockkit_testbed::RedisCluster::start()?;
/// let migration = cluster.migrate(cluster.slot("{k}1")?, 1)?;
/// migration.move_key("{k}1")?;
/// migration.move_keys()?; // all that are left
/// migration.finish()?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: usize,
    to: usize,
}

impl<'a> Migration<'a> {
    pub(super) fn begin(cluster: &'a RedisCluster, slot: usize, from: usize, to: usize) -> Result<Self> {
        ensure!(from != to, "node {to} owns slot {slot} already");
        let migration = Self { cluster, slot: slot.to_string(), from, to };
        migration.target().cli(&["CLUSTER", "SETSLOT", &migration.slot, "IMPORTING", cluster.id(from)])?;
        migration.source().cli(&["CLUSTER", "SETSLOT", &migration.slot, "MIGRATING", cluster.id(to)])?;
        Ok(migration)
    }

    /// Moves one key of the slot. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// When a node refuses.
    pub fn move_key(&self, key: &str) -> Result<bool> {
        self.transfer(&[key])
    }

    /// Moves all keys that the slot has now.
    ///
    /// # Errors
    ///
    /// When a node refuses.
    pub fn move_keys(&self) -> Result<()> {
        loop {
            let keys = self.source().cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, KEYS_MAX])?;
            let keys: Vec<&str> = keys.list().iter().map(|key| key.text()).collect();
            if keys.is_empty() {
                return Ok(());
            }
            self.transfer(&keys)?;
        }
    }

    /// Makes the target the owner of the slot, and informs all running masters.
    ///
    /// # Errors
    ///
    /// When keys of the slot are still on the source, or a node refuses.
    pub fn finish(self) -> Result<()> {
        let new_owner = ["CLUSTER", "SETSLOT", &self.slot, "NODE", self.cluster.id(self.to)];
        let left = self.source().cli(&["CLUSTER", "COUNTKEYSINSLOT", &self.slot])?;
        ensure!(left.number() == Some(0), "slot {} still has keys on its old owner: {left:?}", self.slot);
        // The target first: the source still redirects clients to it. In the other order, each would redirect clients
        // to the other for a moment.
        self.target().cli(&new_owner)?;
        self.source().cli(&new_owner)?;
        for (number, node) in running(self.cluster.nodes()) {
            if number != self.from && number != self.to && node.is_master()? {
                node.cli(&new_owner)?;
            }
        }
        Ok(())
    }

    fn transfer(&self, keys: &[&str]) -> Result<bool> {
        let target = self.target();
        let [host, port] = target.announced_address();
        let words = [&["MIGRATE", &host, &port, "", "0", MOVE_MAX_MS, "KEYS"], keys].concat();
        Ok(self.source().cli(&words)?.text() == "OK")
    }

    fn source(&self) -> &Redis {
        self.cluster.node(self.from)
    }

    fn target(&self) -> &Redis {
        self.cluster.node(self.to)
    }
}
