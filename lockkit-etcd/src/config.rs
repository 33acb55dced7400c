//! The configuration: how to reach etcd, and where in it the locks lie.

use std::{fmt, time::Duration};

use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{BackendUrl, Host},
    limits::{REQUEST_TIMEOUT_DEFAULT, REQUEST_TIMEOUT_MAX, REQUEST_TIMEOUT_MIN},
};

use crate::{
    Tls,
    forms::{Form, Shape},
    keys::{Layout, Names},
    tls,
};

/// Port of an endpoint without a port.
const PORT_DEFAULT: u16 = 2379;

/// Prefix of a configuration without one, with [`Names::Encoded`]; [`Names::Raw`] has none.
const PREFIX_DEFAULT: &str = "lockkit/";

/// How to reach etcd, and where in it the locks lie.
///
/// ```
/// use lockkit_etcd::{EtcdBackend, EtcdConfig};
///
/// let config = EtcdConfig::new(["10.0.0.1:2379", "10.0.0.2:2379"])?.user("app", "secret").prefix("prod/locks");
/// assert!(!format!("{config:?}").contains("secret"));
/// let backend = EtcdBackend::new(config);
/// # Ok::<(), lockkit_core::Error>(())
/// ```
#[derive(Clone)]
pub struct EtcdConfig {
    pub(crate) endpoints: Vec<String>,
    pub(crate) login: Option<(String, String)>,
    pub(crate) tls: Option<Tls>,
    prefix: Option<String>,
    names: Names,
    pub(crate) form: Form,
    guard: Option<String>,
    pub(crate) request_timeout: Duration,
}

impl EtcdConfig {
    /// Creates a configuration for these servers, each `HOST:PORT` or `HOST`. If all of them are `https://HOST:PORT`,
    /// [TLS](Self::tls) is on. One reachable server is enough.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` without an endpoint, for an endpoint of another form, and for `https://` at only some of them;
    /// `Unsupported` for `https://` without the feature `tls`.
    pub fn new(endpoints: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let endpoints: Vec<(bool, String)> =
            endpoints.into_iter().map(|endpoint| parse_endpoint(endpoint.as_ref())).collect::<Result<_>>()?;
        let with_tls = endpoints.iter().filter(|(is_tls, _)| *is_tls).count();
        let config = Self {
            endpoints: endpoints.into_iter().map(|(_, endpoint)| endpoint).collect(),
            login: None,
            tls: None,
            prefix: None,
            names: Names::default(),
            form: Form::default(),
            guard: None,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
        };
        match (with_tls, config.endpoints.len()) {
            (_, 0) => Err(invalid("etcd needs at least one endpoint")),
            (0, _) => Ok(config),
            (some, all) if some < all => Err(invalid("either all endpoints are https:// or none is")),
            _ if cfg!(feature = "tls") => Ok(config.tls(Tls::new())),
            _ => Err(tls::not_in_this_build()),
        }
    }

    /// Parses the URL `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/PREFIX][?names=raw]
    /// [&form=single|rpc][&guard=/locks/][&request_timeout=3s]`, or with TLS `etcds://...[?ca=FILE][&cert=FILE&key=FILE]`, see [`Tls`].
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for another scheme, a user without a password, a certificate without its key, an unknown option,
    /// options of TLS without TLS; `Unsupported` for TLS without the feature `tls`.
    pub fn from_url(mut url: BackendUrl) -> Result<Self> {
        let is_tls = match url.scheme() {
            crate::SCHEME => false,
            crate::SCHEME_TLS if cfg!(feature = "tls") => true,
            crate::SCHEME_TLS => return Err(tls::not_in_this_build()),
            other => return Err(invalid(format!("{other:?} is not the scheme of etcd"))),
        };
        let mut config = Self::new(url.hosts().iter().map(Host::to_string))?;
        if is_tls {
            config = config.tls(Tls::take_from(&mut url)?);
        }
        match (url.user(), url.password()) {
            (Some(user), Some(password)) => config = config.user(user, password),
            (None, None) => {}
            _ => return Err(invalid("etcd takes a user together with a password, or neither")),
        }
        if !matches!(url.path(), "" | "/") {
            config = config.prefix(url.path());
        }
        if let Some(names) = url.take_word("names", &[("encoded", Names::Encoded), ("raw", Names::Raw)])? {
            config = config.names(names);
        }
        let forms = [("queue", Form::Queue), ("single", Form::Single), ("rpc", Form::Rpc)];
        if let Some(form) = url.take_word("form", &forms)? {
            config = config.form(form);
        }
        if let Some(guard) = url.take("guard") {
            config = config.guard(guard);
        }
        if let Some(timeout) = url.take_duration("request_timeout")? {
            config = config.request_timeout(timeout);
        }
        url.finish()?;
        config.layout().check()?;
        Ok(config)
    }

    /// Logs in with this name and password. Opening a session fails with `Denied` if the server asks for a login and
    /// there is none, and with `InvalidConfig` if there is one and the server's authentication is off: a password that
    /// protects nothing must not go unnoticed.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((name.into(), password.into()));
        self
    }

    /// Uses TLS with all servers. Without the feature `tls` connecting fails; it never falls back to plain text.
    ///
    /// ```
    /// use lockkit_etcd::{EtcdConfig, Tls};
    ///
    /// let tls = Tls::new().ca("/etc/etcd/ca.pem").identity("/etc/app/app.pem", "/etc/app/app-key.pem");
    /// let config = EtcdConfig::new(["10.0.0.1:2379"])?.tls(tls);
    /// # Ok::<(), lockkit_core::Error>(())
    /// ```
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the prefix: all keys begin with this text (slashes at its ends are removed) and one slash. Empty: no
    /// prefix. Default: `lockkit`, and none with [`Names::Raw`]. Clients that share locks need the same prefix; no
    /// prefix may lie inside another one.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        let text = prefix.as_ref().trim_matches('/');
        self.prefix = Some(if text.is_empty() { String::new() } else { format!("{text}/") });
        self
    }

    /// Sets how lock names become keys.
    #[must_use]
    pub fn names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Sets what a lock is in the store. Default: [`Form::Queue`].
    #[must_use]
    pub fn form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Sets a guard: clients queue as usual, and the first in the queue also creates the *guard key*, this text with
    /// the lock's name (spelled as in the queue's keys) appended to it, if it is absent. So the lock also excludes
    /// programs that lock by creating that one key. A release deletes both keys at once. Default: no guard.
    ///
    /// With [`Names::Raw`], `guard("/locks/")` shares the lock `x` with `client.lock("x")` of the Python package etcd3,
    /// and `guard("")` with `lock("x")` of aetcd and of the Node.js package etcd3. Waiting programs that poll have no
    /// place in the queue. All clients of a lock need the same guard. With a guard there are no elections, records or
    /// pins.
    ///
    /// Opening a session fails with `InvalidConfig` with another form than [`Form::Queue`], or if keys that
    /// begin with the guard would count as waiters of a lock.
    #[must_use]
    pub fn guard(mut self, guard: impl Into<String>) -> Self {
        self.guard = Some(guard.into());
        self
    }

    /// Sets the time limit of one request. An acquire may take any number of requests. With a short ttl, requests of a
    /// heartbeat have a shorter limit. Default 3 s; at least 10 ms, at most 60 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout.clamp(REQUEST_TIMEOUT_MIN, REQUEST_TIMEOUT_MAX);
        self
    }

    pub(crate) fn layout(&self) -> Layout {
        let default = match self.names {
            Names::Encoded => PREFIX_DEFAULT,
            Names::Raw => "",
        };
        let shape = Shape { form: self.form, guard: self.guard.clone() };
        Layout::new(self.prefix.as_deref().unwrap_or(default), self.names).shaped(shape)
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Destructured in full, so that a new field does not compile until it is decided here whether it is a secret.
        let Self { endpoints, login, tls, prefix, names, form, guard, request_timeout } = self;
        f.debug_struct("EtcdConfig")
            .field("endpoints", endpoints)
            .field("user", &login.as_ref().map(|(user, _)| user))
            .field("password", &login.as_ref().map(|_| "***"))
            .field("tls", tls)
            .field("prefix", prefix)
            .field("names", names)
            .field("form", form)
            .field("guard", guard)
            .field("request_timeout", request_timeout)
            .finish()
    }
}

/// Parses `[http[s]://]HOST[:PORT]`. Returns whether it is `https://`, and `HOST:PORT`.
fn parse_endpoint(text: &str) -> Result<(bool, String)> {
    let (is_tls, authority) = match text.strip_prefix("https://") {
        Some(authority) => (true, authority),
        None => (false, text.strip_prefix("http://").unwrap_or(text)),
    };
    match Host::parse(authority) {
        Some(host) => Ok((is_tls, host.with_port(PORT_DEFAULT))),
        // The error does not repeat the text, which may contain a misplaced password.
        None => Err(invalid("an endpoint is HOST or HOST:PORT")),
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidConfig, "configure etcd").with_message(message)
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;

    fn from(url: &str) -> Result<EtcdConfig> {
        EtcdConfig::from_url(BackendUrl::parse(url)?)
    }

    fn queue_of_x(config: &EtcdConfig) -> String {
        config.layout().queue(&LockName::new("x").unwrap()).unwrap().as_str().to_owned()
    }

    #[test]
    fn url_sets_every_option() {
        let config = from("etcd://me:s%40cret@h1:1,h2,[::1]/prod/locks/?request_timeout=500ms").unwrap();
        assert_eq!(config.endpoints, ["h1:1", "h2:2379", "[::1]:2379"]);
        assert_eq!(config.login, Some(("me".into(), "s@cret".into())));
        assert_eq!(config.request_timeout, Duration::from_millis(500));
        assert_eq!(queue_of_x(&config), "prod/locks/x/");
    }

    #[test]
    fn time_limit_of_a_request_is_bounded() {
        for (millis, bounded) in [(0, 10), (500, 500), (3_600_000, 60_000)] {
            let config = EtcdConfig::new(["h"]).unwrap().request_timeout(Duration::from_millis(millis));
            assert_eq!(config.request_timeout, Duration::from_millis(bounded));
        }
    }

    #[test]
    fn defaults_of_the_prefix() {
        assert_eq!(queue_of_x(&from("etcd://h").unwrap()), "lockkit/x/");
        assert_eq!(queue_of_x(&from("etcd://h/?names=raw").unwrap()), "x/");
        assert_eq!(queue_of_x(&from("etcd://h/app?names=raw").unwrap()), "app/x/");
        assert_eq!(queue_of_x(&EtcdConfig::new(["h"]).unwrap().prefix("")), "x/");
    }

    #[test]
    fn mistakes_are_rejected_by_kind() {
        for (url, kind) in [
            ("etcd://me@h", ErrorKind::InvalidConfig),
            ("etcd:///x", ErrorKind::InvalidConfig),
            ("redis://h", ErrorKind::InvalidConfig),
            ("etcd://h/?name=raw", ErrorKind::InvalidConfig),
            ("etcd://h/?names=row", ErrorKind::InvalidConfig),
            ("etcd://h/?form=double", ErrorKind::InvalidConfig),
            ("etcd://h/?form=single&guard=/locks/", ErrorKind::InvalidConfig),
            ("etcd://h/?guard=lockkit/x/", ErrorKind::InvalidConfig),
            ("etcd://h/?request_timeout=soon", ErrorKind::InvalidConfig),
            ("https://h", ErrorKind::InvalidConfig),
            ("etcd://h/?ca=/ca.pem", ErrorKind::InvalidConfig),
        ] {
            assert_eq!(from(url).unwrap_err().kind(), kind, "{url}");
        }
        for endpoint in ["", "h:port", "h:70000", "me:secret@h:1", "h/x", "h?x", "h#x", "h x", "http://"] {
            let error = EtcdConfig::new([endpoint]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{endpoint}");
            assert!(!error.to_string().contains("secret"));
        }
        let mixed = EtcdConfig::new(["https://h", "http://h"]).unwrap_err();
        assert_eq!(mixed.kind(), ErrorKind::InvalidConfig);
        assert!(EtcdConfig::new([""; 0]).is_err());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn scheme_and_options_configure_tls() {
        assert_eq!(from("etcd://h").unwrap().tls, None);
        assert_eq!(from("etcds://h").unwrap().tls, Some(Tls::new()));
        assert_eq!(EtcdConfig::new(["https://h"]).unwrap().tls, Some(Tls::new()));
        let config = from("etcds://h/?ca=/ca.pem&cert=/a.pem&key=/a-key.pem").unwrap();
        assert_eq!(config.tls, Some(Tls::new().ca("/ca.pem").identity("/a.pem", "/a-key.pem")));
        for alone in ["etcds://h/?cert=/a.pem", "etcds://h/?key=/a-key.pem", "etcds://h/?verify=no"] {
            assert_eq!(from(alone).unwrap_err().kind(), ErrorKind::InvalidConfig, "{alone}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_is_refused_by_a_build_without_it() {
        assert_eq!(from("etcds://h").unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(EtcdConfig::new(["https://h"]).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn no_secret_is_printed() {
        let config = from("etcd://me:hunter2@h").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
