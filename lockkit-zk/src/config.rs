//! How to reach ZooKeeper, and where in it the locks lie.

use std::{fmt, time::Duration};

use lockkit_core::{Result, backend::BackendUrl};

use crate::{
    Tls,
    access::Access,
    keys::{Form, Layout, Names},
    parse::{invalid, parse_path, parse_server},
    tls,
};

/// Directory of all locks where the configuration names none, inside the chroot.
const ROOT_DEFAULT: &str = "/lockkit";

/// Longest time for one request that a configuration does not set.
const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

/// What is configured is moved into these bounds.
const REQUEST_TIMEOUT_MIN: Duration = Duration::from_millis(10);
const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// What kind of node the directories are that clients make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parents {
    /// Containers, which the server takes away some time after their last child has gone; persistent nodes where the
    /// server has none. The default.
    #[default]
    Container,
    /// Persistent nodes, which stay: for locks shared with kazoo. A kazoo `Lock` creates its directory once, and fails with
    /// `NoNode` when that has been removed since.
    Persistent,
}

/// How to log in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Login {
    /// By ZooKeeper's scheme `digest`: the server refuses no password, it just does not know who this is. The default.
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
    chroot: String,
    /// `None`: this library's own directory.
    root: Option<String>,
    names: Option<Names>,
    form: Form,
    pub(crate) parents: Parents,
    pub(crate) login: Option<(String, String, Login)>,
    pub(crate) tls: Option<Tls>,
    access: Option<Access>,
    pub(crate) tick: Option<Duration>,
    pub(crate) request_timeout: Duration,
}

impl ZkConfig {
    /// The servers, each as `HOST:PORT` or `HOST`; any one that is reachable and has a quorum will do.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` without a server, and for one that is not of this form.
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

    /// The configuration of `zk://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/CHROOT][?OPTION=VALUE[&...]]`. Options:
    /// `root=/locks`, `names=encoded|raw`, `form=curator|bare|single`, `parents=container|persistent`, `login=digest|sasl`,
    /// `acl=auth::cdrwa,world:anyone:r`, `tick=2s`, `request_timeout=3s`; with TLS (`zks://`) also `ca=FILE`, `cert=FILE`
    /// and `key=FILE`, see [`Tls`].
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for another scheme, a user without a password, a path that is none, a certificate without its key,
    /// an unknown option; `Unsupported` for TLS without the feature `tls`.
    pub fn from_url(mut url: BackendUrl) -> Result<Self> {
        let is_tls = match url.scheme() {
            crate::SCHEME => false,
            crate::SCHEME_TLS if cfg!(feature = "tls") => true,
            crate::SCHEME_TLS => return Err(tls::not_in_this_build()),
            other => return Err(invalid(format!("{other:?} is not the scheme of zookeeper"))),
        };
        let servers = url.hosts().iter().map(|host| match host.port {
            Some(port) => format!("{}:{port}", host.name),
            None => host.name.clone(),
        });
        let mut config = Self::new(servers)?.chroot(url.path())?;
        if is_tls {
            config = config.tls(Tls::take_from(&mut url)?);
        }
        let logins = [("digest", Login::Digest), ("sasl", Login::SaslDigestMd5)];
        let login = url.take_word("login", &logins)?;
        config = match (url.user(), url.password(), login) {
            (Some(user), Some(password), login) => config.user(user, password, login.unwrap_or_default()),
            (None, None, None) => config,
            _ => return Err(invalid("zookeeper takes a user together with a password, or neither")),
        };
        if let Some(root) = url.take("root") {
            config = config.root(root)?;
        }
        config.names = url.take_word("names", &[("encoded", Names::Encoded), ("raw", Names::Raw)])?;
        let forms = [("curator", Form::Curator), ("bare", Form::Bare), ("single", Form::Single)];
        config.form = url.take_word("form", &forms)?.unwrap_or_default();
        let parents = [("container", Parents::Container), ("persistent", Parents::Persistent)];
        config.parents = url.take_word("parents", &parents)?.unwrap_or_default();
        if let Some(acl) = url.take("acl") {
            config = config.access(Access::parse(&acl)?);
        }
        config.tick = url.take_duration("tick")?;
        if let Some(timeout) = url.take_duration("request_timeout")? {
            config = config.request_timeout(timeout);
        }
        url.finish()?;
        Ok(config)
    }

    /// The node that everything lies below; it must exist. Default: none.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for what is no path.
    pub fn chroot(mut self, path: impl AsRef<str>) -> Result<Self> {
        self.chroot = parse_path(path.as_ref())?;
        Ok(self)
    }

    /// The directory of the locks, inside the chroot; it is created where it is missing. `/`: none. Default: `/lockkit`,
    /// which belongs to this library alone. Clients that share locks have the same chroot, root and
    /// [names](Self::names).
    ///
    /// To share locks with other programs, name their directory. There a lock's name must be spelled alike for both: one
    /// that would have to be encoded is refused (`InvalidName`) unless [`names`](Self::names) says which node is meant.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for what is no path.
    pub fn root(mut self, path: impl AsRef<str>) -> Result<Self> {
        self.root = Some(parse_path(path.as_ref())?);
        Ok(self)
    }

    /// How lock names become names of nodes. Default: [`Names::Encoded`] in the default directory; below a
    /// [root](Self::root) that is named, only names that need no encoding are accepted.
    #[must_use]
    pub fn names(mut self, names: Names) -> Self {
        self.names = Some(names);
        self
    }

    /// What a claim looks like in the store.
    #[must_use]
    pub fn form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// What kind of node the directories are.
    #[must_use]
    pub fn parents(mut self, parents: Parents) -> Self {
        self.parents = parents;
        self
    }

    /// Logs in with this name and password.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>, login: Login) -> Self {
        self.login = Some((name.into(), password.into(), login));
        self
    }

    /// Speaks TLS with all servers. Without the feature `tls` the connection is refused, not made without it.
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

    /// Who may do what with the nodes. Default: everybody may do everything; with a [user](Self::user) only who is
    /// logged in as that.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// The servers' `tickTime`. Clients leave half of it as a margin before they hold a session for lost, and assume the
    /// most that the servers allow by default, half a session, so to name it makes a hold outlive a longer outage.
    ///
    /// It must be named where `minSessionTimeout` is less than two ticks; and where clients are at observers that follow a
    /// follower (`observerMasterPort`), with twice its length, unless the ttl is four ticks or more: those observers report
    /// their clients to the leader up to a whole tick late.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// Longest time for one request (not for an acquire, which is as many requests as it takes); the beats of a short
    /// ttl shorten it. Default 3 s; at least 10 ms, at most 60 s.
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

    /// As the client crate takes it.
    pub(crate) fn connect_string(&self) -> String {
        let scheme = if self.tls.is_some() { "tcp+tls://" } else { "tcp://" };
        let servers: Vec<String> = self.servers.iter().map(|server| format!("{scheme}{server}")).collect();
        format!("{}{}", servers.join(","), self.chroot)
    }

    /// Longest time to open a session: every server is asked.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.request_timeout.saturating_mul(u32::try_from(self.servers.len()).unwrap_or(u32::MAX))
    }
}

impl fmt::Debug for ZkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Taken apart in full, so that a new field must decide here whether it is a secret.
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
    use lockkit_core::ErrorKind;

    use super::*;

    fn from(url: &str) -> Result<ZkConfig> {
        ZkConfig::from_url(BackendUrl::parse(url)?)
    }

    #[test]
    fn a_url_says_it_all() {
        let config = from(
            "zk://me:s%40cret@h1:1,h2,[::1]/prod/app/?root=locks&names=raw&form=bare&parents=persistent&tick=500ms&request_timeout=1s",
        )
        .unwrap();
        assert_eq!(config.connect_string(), "tcp://h1:1,tcp://h2:2181,tcp://[::1]:2181/prod/app");
        assert_eq!(config.login, Some(("me".into(), "s@cret".into(), Login::Digest)));
        assert_eq!(
            (config.root.as_deref(), config.names, config.form, config.parents),
            (Some("/locks"), Some(Names::Raw), Form::Bare, Parents::Persistent)
        );
        assert_eq!(
            (config.tick, config.request_timeout),
            (Some(Duration::from_millis(500)), Duration::from_secs(1))
        );
        assert_eq!(config.acl(), Access::creator());
    }

    #[test]
    fn defaults() {
        let config = from("zk://h").unwrap();
        let path = |config: &ZkConfig| config.layout().lock(&"a:b".parse().unwrap());
        assert_eq!(config.connect_string(), "tcp://h:2181");
        assert_eq!(path(&config).unwrap(), "/lockkit/a%3Ab");
        assert_eq!(path(&from("zk://h/?names=raw").unwrap()).unwrap(), "/lockkit/a:b");
        assert_eq!(
            (config.form, config.parents, config.acl()),
            (Form::Curator, Parents::Container, Access::open())
        );
        assert!(path(&from("zk://h/?root=/").unwrap()).is_err());
        assert_eq!(path(&from("zk://h/?root=/&names=encoded").unwrap()).unwrap(), "/a%3Ab");
    }

    #[test]
    fn mistakes_are_told_by_kind() {
        for url in [
            "zk://me@h",
            "zk:///x",
            "etcd://h",
            "zk://h/a//b",
            "zk://h/a,b",
            "zk://h/?root=/a/./b",
            "zk://h/?rot=/x",
            "zk://h/?form=kazoo",
            "zk://h/?names=curator",
            "zk://h/a\u{1f512}b",
            "zk://h/?login=sasl",
            "zk://h/?acl=world",
            "zk://h/?tick=soon",
            "zk://h/?ca=/ca.pem",
        ] {
            assert_eq!(from(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        for server in ["", ":1", "h:port", "h:70000", "h:0", "me:secret@h:1", "h/x", "h1,h2"] {
            let error = ZkConfig::new([server]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{server}");
            assert!(!error.to_string().contains("secret"));
        }
        assert!(ZkConfig::new([""; 0]).is_err());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_named_by_scheme_and_options() {
        assert_eq!(from("zk://h").unwrap().tls, None);
        assert_eq!(from("zks://h").unwrap().tls, Some(Tls::new()));
        let config = from("zks://h/?ca=/ca.pem&cert=/a.pem&key=/a-key.pem").unwrap();
        assert_eq!(config.tls, Some(Tls::new().ca("/ca.pem").identity("/a.pem", "/a-key.pem")));
        for alone in ["zks://h/?cert=/a.pem", "zks://h/?key=/a-key.pem", "zks://h/?verify=no"] {
            assert_eq!(from(alone).unwrap_err().kind(), ErrorKind::InvalidConfig, "{alone}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_is_refused_by_a_build_without_it() {
        assert_eq!(from("zks://h").unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn no_secret_is_printed() {
        let config = from("zk://me:hunter2@h").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
