//! What a ZooKeeper server reports of itself and of its nodes.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, bail};

use super::{
    ZooKeeper,
    commands::{self, Connection},
    wire::Wire,
};
use crate::Metrics;

/// How often `dump` is repeated: its table changes while the server prints it.
const DUMPS_MAX: usize = 100;

impl ZooKeeper {
    /// Returns its version, such as `3.8.0`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn version(&self) -> Result<String> {
        commands::version(&self.commands().ask("srvr")?)
    }

    /// Returns the server's counters now (`mntr`). Each call counts as one received packet itself.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.commands().ask("mntr")?))
    }

    /// Returns how many watches clients of this server have set, on data and on lists of children (`mntr`; `wchs` counts
    /// only the former).
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn watches(&self) -> Result<u64> {
        commands::watches(&self.commands().ask("mntr")?)
    }

    /// Returns the paths of all ephemeral nodes, by the session that they belong to (`dump`).
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn ephemerals(&self) -> Result<BTreeMap<i64, Vec<String>>> {
        commands::ephemerals(&self.commands().ask("dump")?)
    }

    /// Returns how long this ephemeral node remains if its session is silent from now on, rounded up to a second
    /// (`dump`); `None` for one that does not exist.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn lifetime(&self, path: &str) -> Result<Option<Duration>> {
        for _ in 0..DUMPS_MAX {
            let answer = self.commands().ask("dump")?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
            let sessions = commands::ephemerals(&answer)?;
            let of_path = sessions.iter().find(|(_, paths)| paths.iter().any(|found| found == path));
            let Some((session, _)) = of_path else { return Ok(None) };
            // A session that is just renewed may be missing: the server moves it from one list to another.
            if let Some(second_of_day) = commands::expiries(&answer).get(session) {
                return Ok(Some(commands::left_of_day(*second_of_day, now)));
            }
        }
        bail!("ZooKeeper does not report when the session of {path} expires")
    }

    /// Returns how many sessions there are (`dump`); the testbed's own requests leave none.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn sessions(&self) -> Result<u64> {
        Ok(commands::expiries(&self.commands().ask("dump")?).len() as u64)
    }

    /// Returns the connections of clients to this server (`cons`).
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn connections(&self) -> Result<Vec<Connection>> {
        commands::connections(&self.commands().ask("cons")?)
    }

    /// Returns the children of a node, sorted by name; none if the node does not exist.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        let mut children = Wire::open(self.plain())?.children(path)?;
        children.sort();
        Ok(children)
    }

    /// Returns the paths of all nodes below this one, parents before their children. Nodes below one that only some
    /// users may list are left out.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn tree(&self, root: &str) -> Result<Vec<String>> {
        Wire::open(self.plain())?.tree(root)
    }
}
