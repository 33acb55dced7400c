//! Options of a ZooKeeper server.

use std::time::Duration;

/// Options of a ZooKeeper server.
///
/// ```
/// # use std::time::Duration;
/// # use lockkit_testbed::ZooKeeperOptions;
/// let slow = ZooKeeperOptions { tick: Duration::from_secs(2), ..Default::default() };
/// ```
#[derive(Clone)]
pub struct ZooKeeperOptions {
    /// `tickTime`: sessions expire at a multiple of it.
    pub tick: Duration,
    /// The shortest session that a client may have.
    pub session_min: Duration,
    /// The longest session that a client may have.
    pub session_max: Duration,
    /// For how many ticks a follower continues to serve without hearing from its leader.
    pub sync_limit: u32,
    /// `jute.maxbuffer`: packets of at least this length are refused.
    pub buffer_bytes: usize,
    /// How often the server deletes containers that have become empty.
    pub reap_every: Duration,
    /// User and password of the only user who is admitted, by SASL DIGEST-MD5; `None`: everybody is.
    pub login: Option<(String, String)>,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        let tick = Duration::from_millis(500);
        Self {
            tick,
            session_min: 2 * tick,
            session_max: Duration::from_secs(600),
            sync_limit: 10,
            buffer_bytes: 0xf_ffff,
            reap_every: Duration::from_secs(60),
            login: None,
        }
    }
}

impl std::fmt::Debug for ZooKeeperOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tick, session_min, session_max, sync_limit, buffer_bytes, reap_every, login } = self;
        f.debug_struct("ZooKeeperOptions")
            .field("tick", tick)
            .field("session_min", session_min)
            .field("session_max", session_max)
            .field("sync_limit", sync_limit)
            .field("buffer_bytes", buffer_bytes)
            .field("reap_every", reap_every)
            .field("user", &login.as_ref().map(|(user, _)| user))
            .finish_non_exhaustive()
    }
}

impl ZooKeeperOptions {
    /// Returns the lines of `zoo.cfg`.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("tickTime={}", self.tick.as_millis()),
            format!("minSessionTimeout={}", self.session_min.as_millis()),
            format!("maxSessionTimeout={}", self.session_max.as_millis()),
            format!("syncLimit={}", self.sync_limit),
            format!("initLimit={}", self.sync_limit.max(20)),
        ];
        if self.login.is_some() {
            lines.push("sessionRequireClientSASLAuth=true".to_owned());
            lines.push(
                "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider".to_owned(),
            );
        }
        lines
    }

    /// Returns the arguments of java.
    pub(super) fn properties(&self) -> Vec<String> {
        vec![
            format!("-Djute.maxbuffer={}", self.buffer_bytes),
            format!("-Dznode.container.checkIntervalMs={}", self.reap_every.as_millis()),
        ]
    }

    /// Returns the configuration of java's login module for [`login`](Self::login).
    pub(super) fn login_module(&self) -> Option<String> {
        let (user, password) = self.login.as_ref()?;
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        Some(format!("Server {{\n  {module} required user_{user}=\"{password}\";\n}};\n"))
    }
}
