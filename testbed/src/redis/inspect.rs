//! What a Redis server reports of its keys and clients.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Redis;
use crate::resp::Reply;

impl Redis {
    /// Returns all keys that match the pattern, in alphabetical order.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn keys(&self, pattern: &str) -> Result<Vec<String>> {
        let reply = self.cli(&["KEYS", pattern])?;
        let mut keys: Vec<String> = reply.list().iter().map(|key| key.text().to_owned()).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// Returns how long this key remains, rounded up; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn lifetime(&self, key: &str) -> Result<Option<Duration>> {
        Ok(match self.cli(&["PTTL", key])?.number().context("PTTL returned no number")? {
            -2 => None,
            -1 => Some(Duration::MAX),
            // A part of one more millisecond may be left.
            ms => Some(Duration::from_millis(ms.unsigned_abs() + 1)),
        })
    }

    /// Returns all keys, each with whether it expires.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn lifetimes(&self) -> Result<Vec<(String, bool)>> {
        const SCRIPT: &str = "local found = {} \
                              for _, key in ipairs(redis.call('KEYS', '*')) do \
                              table.insert(found, {key, redis.call('PTTL', key)}) end \
                              return found";
        let found = self.cli(&["EVAL", SCRIPT, "0"])?;
        let key = |pair: &Reply| match pair.list() {
            [key, pttl] => Ok((key.text().to_owned(), pttl.number() != Some(-1))),
            _ => bail!("not a key with its lifetime: {pair:?}"),
        };
        found.list().iter().map(key).collect()
    }

    /// Returns how many clients are connected, without this request's own connection, replicas, masters and Sentinels.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn clients(&self) -> Result<u64> {
        let list = self.cli(&["CLIENT", "LIST"])?;
        let is_client = |line: &&str| {
            let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name));
            let is_peer = field("flags=").is_none_or(|flags| flags.contains(['S', 'M']));
            let is_sentinel = field("name=").is_some_and(|name| name.starts_with("sentinel-"));
            !is_peer && !is_sentinel && field("cmd=") != Some("client|list")
        };
        Ok(list.text().lines().filter(is_client).count() as u64)
    }

    /// Returns the channels that have subscribers, without that of the Sentinels.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn channels(&self) -> Result<Vec<String>> {
        let found = self.cli(&["PUBSUB", "CHANNELS"])?;
        let channels = found.list().iter().map(|channel| channel.text().to_owned());
        Ok(channels.filter(|channel| channel != "__sentinel__:hello").collect())
    }

    /// Returns how often this command was executed, such as `evalsha` or `publish`, including calls from scripts.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn calls(&self, command: &str) -> Result<u64> {
        let stats = self.info("commandstats")?;
        let calls = stats.get(&format!("cmdstat_{command}")).and_then(|stat| stat.strip_prefix("calls="));
        Ok(calls.and_then(|rest| rest.split(',').next()).and_then(|count| count.parse().ok()).unwrap_or(0))
    }
}
