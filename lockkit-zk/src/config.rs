//! How to reach ZooKeeper, and where in it the locks are kept.

use std::{fmt, time::Duration};

use lockkit_core::{
    Result,
    limits::{REQUEST_TIMEOUT_DEFAULT, REQUEST_TIMEOUT_MAX, REQUEST_TIMEOUT_MIN},
};

use crate::{
    Tls,
    access::Access,
    keys::{Form, Layout, Names},
    url::{invalid, parse_path, parse_server},
};

/// Directory of all locks, inside the chroot, unless the configuration names another.
const ROOT_DEFAULT: &str = "/lockkit";

/// The kind of node that clients create as directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parents {
    /// Containers, which the server removes some time after their last child is gone; persistent nodes where the server
    /// has no containers. The default.
    #[default]
    Container,
    /// Persistent nodes, for locks shared with kazoo: a kazoo `Lock` creates its directory once, and fails with
    /// `NoNode` if the directory is removed later.
    Persistent,
}

/// How to log in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Login {
    /// By ZooKeeper's scheme `digest`. The server rejects no password: a wrong one is just another identity. The
    /// default.
    #[default]
    Digest,
    /// By SASL DIGEST-MD5. Needs the feature `sasl`.
    SaslDigestMd5,
}

/// How to reach ZooKeeper, and where in it the locks lie.
///
/// ```
/// use lockkit_zk::{Login, ZkBackend, ZkConfig};
///
/// let config = ZkConfig::new(["10.0.0.1:2181", "10.0.0.2"])?.chroot("/prod")?.user("app", "secret", Login::Digest);
/// assert!(!format!("{config:?}").contains("secret"));
/// let backend = ZkBackend::new(config);
/// # Ok::<(), lockkit_core::Error>(())
/// ```
#[derive(Clone)]
pub struct ZkConfig {
    pub(crate) servers: Vec<String>,
    pub(crate) chroot: String,
    /// `None`: this library's own directory.
    pub(crate) root: Option<String>,
    pub(crate) names: Option<Names>,
    pub(crate) form: Form,
    pub(crate) parents: Parents,
    pub(crate) login: Option<(String, String, Login)>,
    pub(crate) tls: Option<Tls>,
    access: Option<Access>,
    pub(crate) tick: Option<Duration>,
    pub(crate) request_timeout: Duration,
}

impl ZkConfig {
    /// Returns a configuration for these servers, each `HOST:PORT` or `HOST`; one reachable server with a quorum is
    /// enough.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for an empty list and for a malformed server.
    pub fn new(servers: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let servers: Vec<String> =
            servers.into_iter().map(|server| parse_server(server.as_ref())).collect::<Result<_>>()?;
        if servers.is_empty() {
            return Err(invalid("zookeeper needs at least one server"));
        }
        Ok(Self {
            servers,
            chroot: String::new(),
            root: None,
            names: None,
            form: Form::default(),
            parents: Parents::default(),
            login: None,
            tls: None,
            access: None,
            tick: None,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
        })
    }

    /// Sets the node below which everything is stored. It must exist. Default: none.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a malformed path.
    pub fn chroot(mut self, path: impl AsRef<str>) -> Result<Self> {
        self.chroot = parse_path(path.as_ref())?;
        Ok(self)
    }

    /// Sets the directory of the locks, inside the chroot. It is created if missing; `/` means the chroot itself.
    /// Default: `/lockkit`, which only this library uses. Clients that share locks use the same chroot, root and
    /// [names](Self::names).
    ///
    /// To share locks with other programs, name their directory. Both must then spell a lock's name alike: a name that
    /// would have to be encoded is refused (`InvalidName`) unless [`names`](Self::names) says which node is meant.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a malformed path.
    pub fn root(mut self, path: impl AsRef<str>) -> Result<Self> {
        self.root = Some(parse_path(path.as_ref())?);
        Ok(self)
    }

    /// Sets how lock names become node names. Default: [`Names::Encoded`] in the default directory; below a configured
    /// [root](Self::root), only names that need no encoding are accepted.
    #[must_use]
    pub fn names(mut self, names: Names) -> Self {
        self.names = Some(names);
        self
    }

    /// Sets what a claim looks like in the store.
    #[must_use]
    pub fn form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Sets the kind of node that directories are.
    #[must_use]
    pub fn parents(mut self, parents: Parents) -> Self {
        self.parents = parents;
        self
    }

    /// Logs in with this user name and password.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>, login: Login) -> Self {
        self.login = Some((name.into(), password.into(), login));
        self
    }

    /// Uses TLS with all servers. Without the feature `tls` connecting fails; it never falls back to plain TCP.
    ///
    /// ```
    /// use lockkit_zk::{ZkConfig, Tls};
    ///
    /// let tls = Tls::new().ca("/etc/zookeeper/ca.pem").identity("/etc/app/app.pem", "/etc/app/app-key.pem");
    /// let config = ZkConfig::new(["10.0.0.1:2281"])?.tls(tls);
    /// # Ok::<(), lockkit_core::Error>(())
    /// ```
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the permissions of created nodes. Default: everybody may do everything; with a [user](Self::user), only
    /// clients logged in as that user.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Sets the servers' `tickTime`. Clients subtract three quarters of it from a session's lease as a margin. Unset, they
    /// subtract a quarter of the session; so setting it makes holds outlive longer outages.
    ///
    /// It must be set if the ttl is less than three ticks. It must be set to twice the tick if clients
    /// connect to observers that follow a follower (`observerMasterPort`) and the ttl is less than four ticks: those
    /// observers report their clients to the leader up to a whole tick late.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// Sets the time limit of one request (not of an acquire, which takes several). The heartbeats of a short ttl use
    /// less. Default 3 s; at least 10 ms, at most 60 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout.clamp(REQUEST_TIMEOUT_MIN, REQUEST_TIMEOUT_MAX);
        self
    }

    pub(crate) fn layout(&self) -> Layout {
        match &self.root {
            Some(root) => Layout::new(root, self.names, self.form),
            None => Layout::new(ROOT_DEFAULT, Some(self.names.unwrap_or(Names::Encoded)), self.form),
        }
    }

    pub(crate) fn acl(&self) -> Access {
        match (&self.access, &self.login) {
            (Some(access), _) => access.clone(),
            (None, Some(_)) => Access::creator(),
            (None, None) => Access::open(),
        }
    }

    /// Returns the connect string of the client crate.
    pub(crate) fn connect_string(&self) -> String {
        let scheme = if self.tls.is_some() { "tcp+tls://" } else { "tcp://" };
        let servers: Vec<String> = self.servers.iter().map(|server| format!("{scheme}{server}")).collect();
        format!("{}{}", servers.join(","), self.chroot)
    }
}

impl fmt::Debug for ZkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Destructured completely, so that each new field needs a decision here whether it is secret.
        let Self { servers, chroot, root, names, form, parents, login, tls, access, tick, request_timeout } =
            self;
        f.debug_struct("ZkConfig")
            .field("servers", servers)
            .field("chroot", chroot)
            .field("root", root)
            .field("names", names)
            .field("form", form)
            .field("parents", parents)
            .field("user", &login.as_ref().map(|(user, ..)| user))
            .field("password", &login.as_ref().map(|_| "***"))
            .field("login", &login.as_ref().map(|(.., login)| login))
            .field("tls", tls)
            .field("access", access)
            .field("tick", tick)
            .field("request_timeout", request_timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limit_of_a_request_is_bounded() {
        let config = ZkConfig::new(["h"]).unwrap();
        assert_eq!(config.request_timeout, Duration::from_secs(3));
        for (millis, bounded) in [(0, 10), (500, 500), (3_600_000, 60_000)] {
            let config = config.clone().request_timeout(Duration::from_millis(millis));
            assert_eq!(config.request_timeout, Duration::from_millis(bounded));
        }
    }
}
