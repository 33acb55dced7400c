//! Clients with other credentials, certificates and rights.

use std::sync::Mutex;

use anyhow::{Result, ensure};
use lockkit_conformance::{Access, AnyBackend};
use lockkit_core::{LockName, support::lock};
use lockkit_testbed::{Redis, RedisMasters};

use super::{Masters, backend, config, encoded};

/// Servers that were started for one client; they run until this value is dropped.
#[derive(Debug, Default)]
pub struct ExtraServers(Mutex<Vec<Running>>);

/// Nodes with a login or TLS, and the files that their client reads whenever a session begins.
#[derive(Debug)]
struct Running {
    _nodes: Vec<Redis>,
    _masters: Option<RedisMasters>,
    #[cfg(feature = "tls")]
    _authorities: Vec<lockkit_testbed::Certificates>,
}

impl ExtraServers {
    /// Returns a client with this access, to these nodes or to new ones.
    pub async fn backend_for(&self, access: &Access, nodes: &Masters) -> Result<AnyBackend> {
        match access {
            Access::AllBut(name) => all_but(nodes, name).await,
            Access::Secret { text, right } => self.with_secret(text, *right).await,
            #[cfg(feature = "tls")]
            Access::Tls(shown) => self.with_tls(*shown).await,
            _ => access.unsupported(),
        }
    }

    async fn with_secret(&self, text: &'static str, right: bool) -> Result<AnyBackend> {
        let password = if right { format!(">{text}") } else { format!(">{text}, but another") };
        let masters = started(move || {
            RedisMasters::start_with(3, &["--user", "me", "on", &password, "~*", "&*", "+@all"])
        });
        let masters = masters.await?;
        let endpoints = masters.endpoints();
        lockkit_redis::init(&config(&format!("redlock://{endpoints}"))?).await?;
        self.keep(Running {
            _nodes: Vec::new(),
            _masters: Some(masters),
            #[cfg(feature = "tls")]
            _authorities: Vec::new(),
        });
        backend(&format!("redlock://me:{text}@{endpoints}"))
    }

    #[cfg(feature = "tls")]
    async fn with_tls(&self, shown: lockkit_conformance::ShownCertificate) -> Result<AnyBackend> {
        use lockkit_conformance::ShownCertificate;
        use lockkit_testbed::{Certificates, ServerCertificate};

        let certificate = match shown {
            ShownCertificate::Trusted | ShownCertificate::UnknownAuthority => ServerCertificate::Good,
            ShownCertificate::WrongName => ServerCertificate::WrongName,
            ShownCertificate::Expired => ServerCertificate::Expired,
            other => anyhow::bail!("no certificate that is {other:?}"),
        };
        let (authority, other) = (Certificates::new()?, Certificates::new()?);
        let nodes = started(move || {
            let start = |_| Redis::start_tls(&authority, certificate, false);
            Ok(((0..3).map(start).collect::<Result<Vec<_>>>()?, authority))
        });
        let (nodes, authority) = nodes.await?;
        let trusted = if shown == ShownCertificate::UnknownAuthority { &other } else { &authority };
        let endpoints: Vec<String> = nodes.iter().map(Redis::endpoint).collect();
        let url = format!("redlocks://{}?ca={}", endpoints.join(","), trusted.ca().display());
        if shown == ShownCertificate::Trusted {
            lockkit_redis::init(&config(&url)?).await?;
        }
        self.keep(Running { _nodes: nodes, _masters: None, _authorities: vec![authority, other] });
        backend(&url)
    }

    fn keep(&self, running: Running) {
        lock(&self.0).push(running);
    }
}

/// Starts servers off the executor, because starting blocks.
async fn started<T: Send + 'static>(start: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(start).await?
}

/// A client that may do everything with all keys except the one of this lock.
async fn all_but(nodes: &Masters, name: &LockName) -> Result<AnyBackend> {
    let key = encoded(name);
    ensure!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.%/".contains(&byte)), "{key}");
    let mut words: Vec<String> =
        ["ACL", "SETUSER", "restricted", "on", ">secret", "&*", "+@all"].map(str::to_owned).into();
    // Patterns for all keys that are longer, shorter, or different at one position.
    words.push(format!("~{key}?*"));
    for (at, byte) in key.char_indices() {
        words.extend([format!("~{}", &key[..at]), format!("~{}[^{byte}]*", &key[..at])]);
    }
    let restrict = move |nodes: &mut RedisMasters| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        (0..nodes.len()).try_for_each(|node| nodes.node(node).cli(&words).map(drop))
    };
    nodes.with(restrict).await?;
    backend(&format!("redlock://restricted:secret@{}", nodes.endpoints.join(",")))
}
