//! Clients that differ in whom they trust and in what they may do, and processes with clocks of their own.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};
use lockkit_conformance::{Access, AnyBackend, WallClock};
use lockkit_core::LockName;
use lockkit_testbed::{Redis, RedisMasters, ServerClock};

use super::{Masters, backend, config, encoded};

/// The nodes of servers that are there for one client; they run as long as this value.
#[derive(Debug, Default)]
pub struct Beside(Mutex<Vec<Running>>);

/// Nodes that log in or speak TLS, and what their client reads whenever a session begins.
#[derive(Debug)]
struct Running {
    _nodes: Vec<Redis>,
    _masters: Option<RedisMasters>,
    #[cfg(feature = "tls")]
    _authorities: Vec<lockkit_testbed::Certificates>,
}

impl Beside {
    /// A client with this access: of these nodes, or of others beside them.
    pub async fn backend_for(&self, access: &Access, nodes: &Masters) -> Result<AnyBackend> {
        match access {
            Access::AllBut(name) => all_but(nodes, name).await,
            Access::Secret { text, right } => self.with_secret(text, *right).await,
            #[cfg(feature = "tls")]
            Access::Tls(shown) => self.with_tls(*shown).await,
            #[cfg(not(feature = "tls"))]
            Access::Tls(_) => access.unsupported(),
        }
    }

    async fn with_secret(&self, text: &'static str, right: bool) -> Result<AnyBackend> {
        let password = if right { format!(">{text}") } else { format!(">{text}, but another") };
        let masters = started(move || {
            RedisMasters::start_with(3, &["--user", "me", "on", &password, "~*", "&*", "+@all"])
        });
        let masters = masters.await?;
        let ends = masters.endpoints();
        lockkit_redis::init(&config(&format!("redlock://{ends}"))?).await?;
        self.keep(Running {
            _nodes: Vec::new(),
            _masters: Some(masters),
            #[cfg(feature = "tls")]
            _authorities: Vec::new(),
        });
        backend(&format!("redlock://me:{text}@{ends}"))
    }

    #[cfg(feature = "tls")]
    async fn with_tls(&self, shown: lockkit_conformance::Shown) -> Result<AnyBackend> {
        use lockkit_conformance::Shown;
        use lockkit_testbed::{Certificates, ServerCertificate};

        let certificate = match shown {
            Shown::Trusted | Shown::OfUnknownAuthority => ServerCertificate::Good,
            Shown::WithWrongName => ServerCertificate::WrongName,
            Shown::Expired => ServerCertificate::Expired,
        };
        let (authority, other) = (Certificates::new()?, Certificates::new()?);
        let nodes = started(move || {
            let start = |_| Redis::start_tls(&authority, certificate, false);
            Ok(((0..3).map(start).collect::<Result<Vec<_>>>()?, authority))
        });
        let (nodes, authority) = nodes.await?;
        let trusted = if shown == Shown::OfUnknownAuthority { &other } else { &authority };
        let ends: Vec<String> = nodes.iter().map(Redis::endpoint).collect();
        let url = format!("redlocks://{}?ca={}", ends.join(","), trusted.ca().display());
        if shown == Shown::Trusted {
            lockkit_redis::init(&config(&url)?).await?;
        }
        self.keep(Running { _nodes: nodes, _masters: None, _authorities: vec![authority, other] });
        backend(&url)
    }

    fn keep(&self, running: Running) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(running);
    }
}

/// Starting blocks, so it is done beside the executor.
async fn started<T: Send + 'static>(start: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(start).await?
}

/// A client that may do everything with all keys but that of this lock.
async fn all_but(nodes: &Masters, name: &LockName) -> Result<AnyBackend> {
    let key = encoded(name);
    ensure!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.%/".contains(&byte)), "{key}");
    let mut words: Vec<String> =
        ["ACL", "SETUSER", "restricted", "on", ">secret", "&*", "+@all"].map(str::to_owned).into();
    // Whatever is longer, shorter, or differs at some place.
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

/// The testbed's clock.
#[derive(Debug)]
pub struct Stepped(pub ServerClock);

impl WallClock for Stepped {
    fn environment(&self) -> Vec<(String, String)> {
        let pairs = self.0.environment();
        let split = pairs.iter().filter_map(|pair| pair.split_once('='));
        split.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn step_forward(&self, by: Duration) -> Result<()> {
        self.0.step_forward(by)
    }

    fn step_back(&self, by: Duration) -> Result<()> {
        self.0.step_back(by)
    }
}
