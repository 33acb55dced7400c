//! What a ZooKeeper server says of itself and of what it holds.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, bail};

use super::{
    ZooKeeper,
    wire::Wire,
    words::{self, Connection},
};
use crate::Metrics;

/// Looks at a table that changes while it is written down.
const LOOKS_MAX: usize = 100;

impl ZooKeeper {
    /// Its version, such as `3.8.0`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn version(&self) -> Result<String> {
        words::version(&self.words().ask("srvr")?)
    }

    /// The server's counters now (`mntr`). Each look is a packet received by itself.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.words().ask("mntr")?))
    }

    /// How many watches clients of this server have set (`wchs`).
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn watches(&self) -> Result<u64> {
        words::watches(&self.words().ask("wchs")?)
    }

    /// The paths of all ephemeral nodes, by the session that they belong to (`dump`).
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn ephemerals(&self) -> Result<BTreeMap<i64, Vec<String>>> {
        words::ephemerals(&self.words().ask("dump")?)
    }

    /// How long this ephemeral node is still there if its session is silent from now on, rounded up to a second (`dump`);
    /// `None` for one that is not there.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn lifetime(&self, path: &str) -> Result<Option<Duration>> {
        for _ in 0..LOOKS_MAX {
            let answer = self.words().ask("dump")?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
            let sessions = words::ephemerals(&answer)?;
            let of_path = sessions.iter().find(|(_, paths)| paths.iter().any(|found| found == path));
            let Some((session, _)) = of_path else { return Ok(None) };
            // One that is just heard of may be missing: the server moves it from one list to another.
            if let Some(second_of_day) = words::expiries(&answer).get(session) {
                return Ok(Some(words::left_of_day(*second_of_day, now)));
            }
        }
        bail!("ZooKeeper does not say when the session of {path} ends")
    }

    /// How many sessions there are, those of the testbed itself left out (`dump`).
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn sessions(&self) -> Result<u64> {
        Ok(words::expiries(&self.words().ask("dump")?).len() as u64)
    }

    /// The connections of clients to this server (`cons`).
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn connections(&self) -> Result<Vec<Connection>> {
        words::connections(&self.words().ask("cons")?)
    }

    /// The children of a node, sorted by name; none where there is no node.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        let mut children = Wire::open(self.plain())?.children(path)?;
        children.sort();
        Ok(children)
    }

    /// The paths of all nodes below this one, parents before their children. What lies below a node that not
    /// everybody may list is left out.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn tree(&self, root: &str) -> Result<Vec<String>> {
        Wire::open(self.plain())?.tree(root)
    }
}
