//! Replicas that are watched by Sentinels.

use std::{
    cell::Cell,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    Redis, RedisReplicas, ServerClock,
    front_proxies::{BehindProxies, FrontProxies, Route},
    nodes::{endpoints, launch_all, running, wait_for, wait_until},
};

/// How many Sentinels there are: they work without one of them.
const SENTINELS: usize = 3;

/// How many Sentinels must agree that the master is down.
const QUORUM: usize = 2;

/// A node that is silent for this time counts as down, in milliseconds: short for tests, long enough for a busy
/// machine.
const DOWN_AFTER_MS: u32 = 5_000;

/// A failed failover is repeated after twice this time, in milliseconds.
const FAILOVER_TIMEOUT_MS: u32 = 5_000;

/// A failover that has changed nothing by then is asked for again.
const FAILOVER_PATIENCE: Duration = Duration::from_secs(10);

/// A Redis master and two replicas, watched by three Sentinels, which promote a replica when the master is down.
///
/// ```no_run
/// let mut redis = lockkit_testbed::RedisSentinels::start()?;
/// let first = redis.master()?;
/// redis.node_mut(first).kill()?; // also pause
/// redis.wait_for_master_after(first)?;
/// redis.node_mut(first).restart()?; // for a while it believes that it is still the master
/// redis.wait_until_in_sync()?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct RedisSentinels {
    /// Declared before the nodes, so that they are dropped first: they would begin a failover.
    sentinels: Vec<Redis>,
    replicas: RedisReplicas,
}

impl RedisSentinels {
    /// The name of the master at the Sentinels.
    pub const NAME: &str = "main";

    /// Starts nodes and Sentinels, and waits until every Sentinel knows the others and could promote either replica.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`]; Debian and Ubuntu have Sentinel in a package of its own.
    pub fn start() -> Result<Self> {
        Self::start_at(Route::Direct, None)
    }

    /// As [`start`](Self::start), with a proxy in front of each node and Sentinel, as [`BehindProxies`] needs them. All
    /// nodes are on this wall clock. The Sentinels are not: they decide nothing for thirty seconds after a step.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_behind_proxies(clock: &ServerClock) -> Result<Self> {
        Self::start_at(Route::Proxied, Some(clock))
    }

    fn start_at(route: Route, clock: Option<&ServerClock>) -> Result<Self> {
        let replicas = RedisReplicas::start_at(route, clock)?;
        let sentinels = (0..SENTINELS).map(|_| Redis::prepare_sentinel(route));
        let mut sentinels = sentinels.collect::<Result<Vec<_>>>()?;
        for (number, sentinel) in sentinels.iter().enumerate() {
            std::fs::write(sentinel.sentinel_file(), configuration(number, &sentinels, &replicas))?;
        }
        launch_all(&mut sentinels)?;
        let redis = Self { sentinels, replicas };
        redis.wait_until_watching()?;
        Ok(redis)
    }

    /// Returns the Sentinels as a backend URL without options: `redis+sentinel://`, their endpoints, and the master's
    /// name.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{}", endpoints(&self.sentinels), Self::NAME)
    }

    /// Returns the nodes.
    pub fn replicas(&self) -> &RedisReplicas {
        &self.replicas
    }

    /// Returns the node with this number: see [`RedisReplicas::node`].
    pub fn node(&self, number: usize) -> &Redis {
        self.replicas.node(number)
    }

    /// Returns the node with this number, to be killed or restarted.
    pub fn node_mut(&mut self, number: usize) -> &mut Redis {
        self.replicas.node_mut(number)
    }

    /// Returns all Sentinels, in the order of their numbers.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Returns the Sentinel with this number; there are three.
    pub fn sentinel(&self, number: usize) -> &Redis {
        &self.sentinels[number]
    }

    /// Returns the Sentinel with this number, to be killed or restarted. A restarted Sentinel keeps its state.
    pub fn sentinel_mut(&mut self, number: usize) -> &mut Redis {
        &mut self.sentinels[number]
    }

    /// Waits until all running Sentinels agree on the master, and returns its number.
    ///
    /// # Errors
    ///
    /// When they do not agree within three minutes.
    pub fn master(&self) -> Result<usize> {
        self.wait_for_master(|_| true)
    }

    /// Waits until another node than `former` is the master and takes writes, and returns its number.
    ///
    /// # Errors
    ///
    /// When there is none within three minutes.
    pub fn wait_for_master_after(&self, former: usize) -> Result<usize> {
        self.wait_for_master(|master| master != former && self.node(master).is_master().unwrap_or(false))
    }

    /// Waits until the running nodes are the master and replicas that have all its data. Returns the number of the
    /// master.
    ///
    /// The master may have changed meanwhile: on a busy machine, any node may be silent long enough to count as down.
    ///
    /// # Errors
    ///
    /// When they are not within three minutes.
    pub fn wait_until_in_sync(&self) -> Result<usize> {
        wait_for("all replicas are in sync with the master of the Sentinels", || {
            let Some(master) = self.agreed_master()? else { return Ok(None) };
            Ok(self.replicas.are_in_sync(master)?.then_some(master))
        })
    }

    /// Makes the Sentinels promote a replica while the master runs. Waits for it and returns the number of the new
    /// master.
    ///
    /// # Errors
    ///
    /// When no replica can be promoted.
    pub fn failover(&self) -> Result<usize> {
        let former = self.master()?;
        let (_, sentinel) = running(&self.sentinels).next().context("no Sentinel runs")?;
        let asked = Cell::new(None::<Instant>);
        wait_for("a replica is promoted", || {
            let agreed = self.agreed_master()?;
            // A Sentinel that knows no fit replica at that moment gives up without a word.
            if agreed == Some(former) && asked.get().is_none_or(|at| at.elapsed() > FAILOVER_PATIENCE) {
                asked.set(Some(Instant::now()));
                sentinel.cli(&["SENTINEL", "FAILOVER", Self::NAME])?;
            }
            Ok(agreed.filter(|&master| master != former && self.node(master).is_master().unwrap_or(false)))
        })
    }

    fn wait_for_master(&self, is_expected: impl Fn(usize) -> bool) -> Result<usize> {
        wait_for("the Sentinels agree on the master", || {
            Ok(self.agreed_master()?.filter(|&master| is_expected(master)))
        })
    }

    fn agreed_master(&self) -> Result<Option<usize>> {
        let mut masters = Vec::new();
        for (_, sentinel) in running(&self.sentinels) {
            let address = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME])?;
            let endpoint: Vec<&str> = address.list().iter().map(|part| part.text()).collect();
            let endpoint = endpoint.join(":");
            masters.push((0..self.replicas.len()).find(|&node| self.node(node).endpoint() == endpoint));
        }
        masters.dedup();
        Ok(if let [Some(master)] = *masters { Some(master) } else { None })
    }

    fn wait_until_watching(&self) -> Result<()> {
        let ready = format!("OK {SENTINELS} usable");
        wait_until("the Sentinels watch", || {
            for sentinel in &self.sentinels {
                let quorum = sentinel.cli(&["SENTINEL", "CKQUORUM", Self::NAME])?;
                let replicas = sentinel.cli(&["SENTINEL", "REPLICAS", Self::NAME])?;
                let fit = replicas.list().iter().filter(|replica| {
                    let fields = replica.list().chunks_exact(2);
                    let mut fields = fields.map(|field| (field[0].text(), field[1].text()));
                    fields.any(|field| field == ("master-link-status", "ok"))
                });
                if !quorum.text().starts_with(&ready) || fit.count() + 1 < self.replicas.len() {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

/// The numbers of the Sentinels follow those of the nodes.
impl BehindProxies for RedisSentinels {
    fn servers(&self) -> Vec<&Redis> {
        self.replicas.nodes().iter().chain(&self.sentinels).collect()
    }
}

impl Redis {
    /// A Sentinel that is not started yet. Its configuration file must be written before.
    fn prepare_sentinel(route: Route) -> Result<Self> {
        let mut sentinel = Self::prepare_program("redis-sentinel")?;
        if route == Route::Proxied {
            sentinel.front = Some(FrontProxies::open(sentinel.address, sentinel.port, None)?);
        }
        let file = sentinel.sentinel_file().display().to_string();
        sentinel.leading_arguments.push(file);
        Ok(sentinel)
    }

    fn sentinel_file(&self) -> PathBuf {
        self.folder().join("sentinel.conf")
    }
}

/// The configuration that a Sentinel would write itself once it has discovered all others, which takes some seconds.
fn configuration(number: usize, sentinels: &[Redis], replicas: &RedisReplicas) -> String {
    let name = RedisSentinels::NAME;
    let id = |number: usize| format!("{:040x}", number + 1);
    let place = |node: &Redis| node.announced_address().join(" ");
    let [own_host, own_port] = sentinels[number].announced_address();
    let mut lines = vec![
        format!("sentinel myid {}", id(number)),
        format!("sentinel announce-ip {own_host}"),
        format!("sentinel announce-port {own_port}"),
        format!("sentinel monitor {name} {} {QUORUM}", place(replicas.node(0))),
        format!("sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}"),
        format!("sentinel failover-timeout {name} {FAILOVER_TIMEOUT_MS}"),
    ];
    if sentinels[number].route() == Route::Proxied {
        lines.push(format!("bind-source-addr {}", sentinels[number].address));
    }
    lines.extend(
        (1..replicas.len())
            .map(|node| format!("sentinel known-replica {name} {}", place(replicas.node(node)))),
    );
    let others = sentinels.iter().enumerate().filter(|&(other, _)| other != number);
    lines.extend(
        others.map(|(other, node)| format!("sentinel known-sentinel {name} {} {}", place(node), id(other))),
    );
    lines.join("\n") + "\n"
}
