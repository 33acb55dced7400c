//! The URL of a store: `zk://` and `zks://`.

use std::borrow::Cow;

use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{BackendUrl, Host},
};

use crate::{
    Tls, ZkConfig,
    access::Access,
    config::{Login, Parents},
    keys::{self, Form, Names},
    tls,
};

/// Default port.
const PORT_DEFAULT: u16 = 2181;

impl ZkConfig {
    /// Returns the configuration of `zk://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/CHROOT][?OPTION=VALUE[&...]]`.
    /// Options: `root=/locks`, `names=encoded|raw`, `form=curator|bare|single`, `parents=container|persistent`,
    /// `login=digest|sasl`, `acl=auth::cdrwa,world:anyone:r`, `tick=2s`, `request_timeout=3s`; with TLS (`zks://`) also
    /// `ca=FILE`, `cert=FILE` and `key=FILE`, see [`Tls`].
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for another scheme, a user without a password, a malformed path, a certificate without its key,
    /// or an unknown option; `Unsupported` for TLS without the feature `tls`.
    pub fn from_url(mut url: BackendUrl) -> Result<Self> {
        let is_tls = match url.scheme() {
            crate::SCHEME => false,
            crate::SCHEME_TLS if cfg!(feature = "tls") => true,
            crate::SCHEME_TLS => return Err(tls::not_in_this_build()),
            other => return Err(invalid(format!("{other:?} is not the scheme of zookeeper"))),
        };
        let servers = url.hosts().iter().map(Host::to_string);
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
}

/// Returns `HOST:PORT` for `HOST[:PORT]`.
pub(crate) fn parse_server(text: &str) -> Result<String> {
    match Host::parse(text) {
        Some(host) => Ok(host.with_port(PORT_DEFAULT)),
        // The error does not repeat the text, which may hold a misplaced password.
        None => Err(invalid("a server is HOST or HOST:PORT")),
    }
}

/// Returns the path without a trailing slash; empty for the root.
pub(crate) fn parse_path(text: &str) -> Result<String> {
    let path = text.trim_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    // A comma would start another server in the client crate's connect string.
    if path.split('/').any(|name| !keys::is_node_name(name) || name.contains(',')) {
        return Err(invalid(format!("{text:?} is not a ZooKeeper path")));
    }
    Ok(format!("/{path}"))
}

pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidConfig, "configure zookeeper").with_message(message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn from(url: &str) -> Result<ZkConfig> {
        ZkConfig::from_url(BackendUrl::parse(url)?)
    }

    #[test]
    fn url_sets_every_option() {
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
    fn mistakes_are_invalid_config() {
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
        for server in [
            "",
            ":1",
            "h:",
            "h:port",
            "h:70000",
            "h:0",
            "[::1]:0",
            "me:secret@h:1",
            "h/x",
            "h?x",
            "h#x",
            "h1,h2",
            "h1 h2",
        ] {
            let error = ZkConfig::new([server]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{server}");
            assert!(!error.to_string().contains("secret"));
        }
        assert!(ZkConfig::new([""; 0]).is_err());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_set_by_scheme_and_options() {
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
