//! From a URL to a client.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use lockkit_core::{
    ClientBuilder, ClientOptions, Error, ErrorKind, LockClient, Result, backend::BackendUrl,
    memory::MemoryServer,
};

/// A scheme of a backend of this project.
struct Known {
    scheme: &'static str,
    /// What brings it.
    feature: &'static str,
    is_in: bool,
}

const BACKENDS: [Known; 15] = [
    Known { scheme: "memory", feature: "", is_in: true },
    Known { scheme: "etcd", feature: "etcd", is_in: cfg!(feature = "etcd") },
    Known { scheme: "etcds", feature: "etcd,tls", is_in: cfg!(all(feature = "etcd", feature = "tls")) },
    Known { scheme: "file", feature: "file", is_in: cfg!(feature = "file") },
    Known { scheme: "redis", feature: "redis", is_in: cfg!(feature = "redis") },
    Known { scheme: "redis+unix", feature: "redis", is_in: cfg!(feature = "redis") },
    Known { scheme: "redis+sentinel", feature: "redis", is_in: cfg!(feature = "redis") },
    Known { scheme: "redis+cluster", feature: "redis", is_in: cfg!(feature = "redis") },
    Known { scheme: "redlock", feature: "redis", is_in: cfg!(feature = "redis") },
    Known { scheme: "redlocks", feature: "redis,tls", is_in: REDIS_TLS },
    Known { scheme: "rediss", feature: "redis,tls", is_in: REDIS_TLS },
    Known { scheme: "rediss+sentinel", feature: "redis,tls", is_in: REDIS_TLS },
    Known { scheme: "rediss+cluster", feature: "redis,tls", is_in: REDIS_TLS },
    Known { scheme: "zk", feature: "zk", is_in: cfg!(feature = "zk") },
    Known { scheme: "zks", feature: "zk,tls", is_in: cfg!(all(feature = "zk", feature = "tls")) },
];

const REDIS_TLS: bool = cfg!(all(feature = "redis", feature = "tls"));

/// Connects to the store that a URL names.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit::Result<()> {
/// let client = lockkit::connect("memory:?ttl=10s&label=importer").await?;
/// # client.close().await }
/// ```
///
/// # Errors
///
/// As [`builder`] and [`ClientBuilder::build`].
///
/// # Cancel safety
///
/// As [`ClientBuilder::build`].
pub async fn connect(url: impl AsRef<str>) -> Result<LockClient> {
    builder(url)?.build().await
}

/// Starts the making of a client of the store that a URL names, to be completed by what no URL says. No I/O.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit::Result<()> {
/// let client = lockkit::builder("memory:")?.own_thread().build().await?;
/// # client.close().await }
/// ```
///
/// # Errors
///
/// `InvalidConfig` for what is no URL, for an unknown scheme (the error lists those of this build), and for options
/// that the backend does not have; `Unsupported` for a scheme whose feature is off (the error names the feature).
pub fn builder(url: impl AsRef<str>) -> Result<ClientBuilder> {
    let mut url = BackendUrl::parse(url.as_ref())?;
    let options = ClientOptions::take_from(&mut url)?;
    Ok(of_backend(url)?.options(options))
}

/// The URL schemes that this build can connect to.
///
/// ```
/// assert!(lockkit::schemes().any(|scheme| scheme == "memory"));
/// ```
pub fn schemes() -> impl Iterator<Item = &'static str> {
    compiled_in(&BACKENDS)
}

fn of_backend(url: BackendUrl) -> Result<ClientBuilder> {
    match url.scheme() {
        "memory" => memory(url),
        #[cfg(feature = "etcd")]
        lockkit_etcd::SCHEME | lockkit_etcd::SCHEME_TLS => {
            let config = lockkit_etcd::EtcdConfig::from_url(url)?;
            Ok(LockClient::builder(lockkit_etcd::EtcdBackend::new(config)))
        }
        #[cfg(feature = "file")]
        lockkit_file::SCHEME => {
            let config = lockkit_file::FileConfig::from_url(url)?;
            Ok(LockClient::builder(lockkit_file::FileBackend::new(config)))
        }
        #[cfg(feature = "redis")]
        scheme if lockkit_redis::SCHEMES.contains(&scheme) => {
            let config = lockkit_redis::RedisConfig::from_url(url)?;
            Ok(LockClient::builder(lockkit_redis::RedisBackend::new(config)))
        }
        #[cfg(feature = "redis")]
        lockkit_redis::SCHEME_REDLOCK | lockkit_redis::SCHEME_REDLOCK_TLS => {
            let config = lockkit_redis::RedlockConfig::from_url(url)?;
            Ok(LockClient::builder(lockkit_redis::RedlockBackend::new(config)))
        }
        #[cfg(feature = "zk")]
        lockkit_zk::SCHEME | lockkit_zk::SCHEME_TLS => {
            let config = lockkit_zk::ZkConfig::from_url(url)?;
            Ok(LockClient::builder(lockkit_zk::ZkBackend::new(config)))
        }
        scheme => Err(not_in_this_build(scheme, &BACKENDS)),
    }
}

/// Clients of one `memory:NAME` in this process share a server, so that they exclude each other; so do those of
/// `memory:`, whose name is empty. A server stays until the process ends: its tokens must go on rising.
fn memory(url: BackendUrl) -> Result<ClientBuilder> {
    static SERVERS: Mutex<BTreeMap<String, MemoryServer>> = Mutex::new(BTreeMap::new());
    if !url.hosts().is_empty() || url.user().is_some() {
        return Err(connect_error(
            ErrorKind::InvalidConfig,
            "memory: has no host; a server of its own is memory:NAME".into(),
        ));
    }
    let name = url.path().to_owned();
    url.finish()?;
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(LockClient::builder(servers.entry(name).or_default().backend()))
}

fn compiled_in(backends: &[Known]) -> impl Iterator<Item = &'static str> {
    backends.iter().filter(|known| known.is_in).map(|known| known.scheme)
}

fn not_in_this_build(scheme: &str, backends: &[Known]) -> Error {
    let here = compiled_in(backends).collect::<Vec<_>>().join(", ");
    if let Some(Known { feature, .. }) = backends.iter().find(|known| known.scheme == scheme) {
        let what = format!("{scheme}: needs the feature {feature:?} of crate lockkit; this build has {here}");
        return connect_error(ErrorKind::Unsupported, what);
    }
    let what = format!("there is no backend for the scheme {scheme:?}; this build has {here}");
    connect_error(ErrorKind::InvalidConfig, what)
}

fn connect_error(kind: ErrorKind, message: String) -> Error {
    Error::new(kind, "connect").with_message(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_is_off_is_named_with_what_there_is() {
        let backends = [("memory", true), ("file", false), ("etcd", true)];
        let backends = backends.map(|(scheme, is_in)| Known { scheme, feature: scheme, is_in });
        let off = not_in_this_build("file", &backends);
        assert_eq!(off.kind(), ErrorKind::Unsupported);
        assert!(off.to_string().contains("feature \"file\""), "{off}");
        let unknown = not_in_this_build("consul", &backends);
        assert_eq!(unknown.kind(), ErrorKind::InvalidConfig);
        for error in [off, unknown] {
            assert!(error.to_string().ends_with("this build has memory, etcd"), "{error}");
        }
    }
}
