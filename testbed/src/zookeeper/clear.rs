//! Makes a server as if it were new, for the next test that uses it.

use std::{thread, time::Duration};

use anyhow::{Result, bail};

use super::{ZooKeeper, commands, wire::Wire};

/// How often the server is asked whether its sessions and connections are gone.
const LOOKS_MAX: usize = 500;
const LOOK_PAUSE: Duration = Duration::from_millis(10);

impl ZooKeeper {
    /// Ends all sessions and deletes all nodes. Transaction ids and counters go on.
    ///
    /// # Errors
    ///
    /// When the server does not answer, a client stays connected, or a node may not be deleted.
    pub fn clear(&self) -> Result<()> {
        self.end_all_sessions()?;
        let mut wire = Wire::open(self.plain())?;
        let nodes = wire.tree("/")?;
        let of_server = |node: &str| node == "/zookeeper" || node.starts_with("/zookeeper/");
        // Children come after their parents.
        for node in nodes.iter().rev().filter(|node| !of_server(node)) {
            wire.delete(node)?;
        }
        Ok(())
    }

    /// Clients whose test has just ended may still be connected, and a client ends its session when it is dropped.
    fn end_all_sessions(&self) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            let answer = self.commands().ask("dump")?;
            let of_nodes = commands::ephemerals(&answer)?.into_keys();
            let sessions: Vec<i64> = commands::expiries(&answer).into_keys().chain(of_nodes).collect();
            if sessions.is_empty() && self.connections()?.is_empty() {
                return Ok(());
            }
            // A session that has ended by itself meanwhile is in no further answer.
            sessions.iter().for_each(|session| drop(self.end_session(*session)));
            thread::sleep(LOOK_PAUSE);
        }
        bail!("ZooKeeper at {} still has clients", self.endpoint())
    }
}
