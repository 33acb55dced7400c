//! From a URL to a client.

use std::{collections::BTreeMap, sync::Mutex};

use lockkit_core::{
    ClientBuilder, ClientOptions, Error, ErrorKind, LockClient, Result, backend::BackendUrl,
    memory::MemoryServer, support::lock,
};

/// A URL scheme that this project supports.
struct Scheme {
    name: &'static str,
    /// The features that it needs.
    features: &'static str,
    is_compiled: bool,
}

const SCHEMES: [Scheme; 15] = [
    Scheme { name: "memory", features: "", is_compiled: true },
    Scheme { name: "etcd", features: "etcd", is_compiled: cfg!(feature = "etcd") },
    Scheme { name: "etcds", features: "etcd,tls", is_compiled: cfg!(all(feature = "etcd", feature = "tls")) },
    Scheme { name: "file", features: "file", is_compiled: cfg!(feature = "file") },
    Scheme { name: "redis", features: "redis", is_compiled: cfg!(feature = "redis") },
    Scheme { name: "redis+unix", features: "redis", is_compiled: cfg!(feature = "redis") },
    Scheme { name: "redis+sentinel", features: "redis", is_compiled: cfg!(feature = "redis") },
    Scheme { name: "redis+cluster", features: "redis", is_compiled: cfg!(feature = "redis") },
    Scheme { name: "redlock", features: "redis", is_compiled: cfg!(feature = "redis") },
    Scheme { name: "redlocks", features: "redis,tls", is_compiled: REDIS_TLS },
    Scheme { name: "rediss", features: "redis,tls", is_compiled: REDIS_TLS },
    Scheme { name: "rediss+sentinel", features: "redis,tls", is_compiled: REDIS_TLS },
    Scheme { name: "rediss+cluster", features: "redis,tls", is_compiled: REDIS_TLS },
    Scheme { name: "zk", features: "zk", is_compiled: cfg!(feature = "zk") },
    Scheme { name: "zks", features: "zk,tls", is_compiled: cfg!(all(feature = "zk", feature = "tls")) },
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

/// Returns a builder for a client of the store that a URL names, for options that a URL cannot express. No I/O.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit::Result<()> {
/// let client = lockkit::builder("memory:")?.own_thread().build().await?;
/// # client.close().await }
/// ```
///
/// # Errors
///
/// `InvalidConfig` for an invalid URL, for an unknown scheme (the error lists the schemes of this build), and for options
/// that the backend does not have. `Unsupported` for a scheme whose feature is off (the error names the feature).
pub fn builder(url: impl AsRef<str>) -> Result<ClientBuilder> {
    let mut url = BackendUrl::parse(url.as_ref())?;
    let options = ClientOptions::take_from(&mut url)?;
    Ok(of_backend(url)?.options(options))
}

/// Returns the URL schemes that this build can connect to.
///
/// ```
/// assert!(lockkit::schemes().any(|scheme| scheme == "memory"));
/// ```
pub fn schemes() -> impl Iterator<Item = &'static str> {
    compiled(&SCHEMES)
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
        scheme => Err(not_in_this_build(scheme, &SCHEMES)),
    }
}

/// Clients of one `memory:NAME` in this process share a server, so they exclude each other. The name of `memory:` is empty.
/// A server lives until the process ends, so that its tokens rise.
fn memory(url: BackendUrl) -> Result<ClientBuilder> {
    static SERVERS: Mutex<BTreeMap<String, MemoryServer>> = Mutex::new(BTreeMap::new());
    if !url.hosts().is_empty() || url.user().is_some() {
        return Err(connect_error(
            ErrorKind::InvalidConfig,
            "memory: has no host; use memory:NAME for a separate server".into(),
        ));
    }
    let name = url.path().to_owned();
    url.finish()?;
    let mut servers = lock(&SERVERS);
    Ok(LockClient::builder(servers.entry(name).or_default().backend()))
}

fn compiled(schemes: &[Scheme]) -> impl Iterator<Item = &'static str> {
    schemes.iter().filter(|scheme| scheme.is_compiled).map(|scheme| scheme.name)
}

fn not_in_this_build(name: &str, schemes: &[Scheme]) -> Error {
    let here = compiled(schemes).collect::<Vec<_>>().join(", ");
    if let Some(Scheme { features, .. }) = schemes.iter().find(|scheme| scheme.name == name) {
        let what = format!("{name}: needs the feature {features:?} of crate lockkit; this build has {here}");
        return connect_error(ErrorKind::Unsupported, what);
    }
    let what = format!("there is no backend for the scheme {name:?}; this build has {here}");
    connect_error(ErrorKind::InvalidConfig, what)
}

fn connect_error(kind: ErrorKind, message: String) -> Error {
    Error::new(kind, "connect").with_message(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_names_the_features_that_it_needs() {
        let schemes = &SCHEMES;
        for (features, names) in [
            ("", "memory"),
            ("etcd", "etcd"),
            ("etcd,tls", "etcds"),
            ("file", "file"),
            ("redis", "redis redis+unix redis+sentinel redis+cluster redlock"),
            ("redis,tls", "rediss rediss+sentinel rediss+cluster redlocks"),
            ("zk", "zk"),
            ("zk,tls", "zks"),
        ] {
            for name in names.split(' ') {
                let scheme = schemes.iter().find(|scheme| scheme.name == name).unwrap();
                assert_eq!(scheme.features, features, "{name}");
                let has_tls = cfg!(feature = "tls") || !features.ends_with("tls");
                assert!(has_tls || !scheme.is_compiled, "{name}");
            }
        }
    }

    #[test]
    fn error_names_the_missing_feature_and_the_schemes_of_this_build() {
        let schemes = [("memory", true), ("file", false), ("etcd", true)];
        let schemes = schemes.map(|(name, is_compiled)| Scheme { name, features: name, is_compiled });
        let off = not_in_this_build("file", &schemes);
        assert_eq!(off.kind(), ErrorKind::Unsupported);
        assert!(off.to_string().contains("feature \"file\""), "{off}");
        let unknown = not_in_this_build("consul", &schemes);
        assert_eq!(unknown.kind(), ErrorKind::InvalidConfig);
        for error in [off, unknown] {
            assert!(error.to_string().ends_with("this build has memory, etcd"), "{error}");
        }
    }
}
