//! TLS: whom to trust, and who to be.

use std::path::PathBuf;

use lockkit_core::{Error, ErrorKind};

/// TLS towards Redis: whom to trust, and who to be. Needs the feature `tls`.
///
/// The server's certificate must be valid now, for the name or address by which the server is named, and issued by an
/// authority that is trusted. There is no way to turn that off, and no way back to a connection without TLS.
///
/// The files are PEM, and are read whenever a connection is made: renewed certificates need no restart.
///
/// ```
/// use lockkit_redis::{RedisConfig, Tls};
///
/// let tls = Tls::new().ca("/etc/redis/ca.pem").identity("/etc/app/app.pem", "/etc/app/app-key.pem");
/// let config = RedisConfig::new(["10.0.0.1:6379"])?.tls(tls);
/// # Ok::<(), lockkit_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Trusts the authorities that the system trusts, and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this file, and no other.
    #[must_use]
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Shows this certificate, with the chain up to its authority where the server needs it, to a server that asks for
    /// one.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }
}

const NOT_IN_THIS_BUILD: &str = "TLS (rediss://) needs the feature \"tls\"";

pub(crate) fn not_in_this_build() -> Error {
    Error::new(ErrorKind::Unsupported, "configure Redis").with_message(NOT_IN_THIS_BUILD)
}

#[cfg(feature = "tls")]
mod with_tls {
    use std::{error::Error as StdError, io, path::Path, sync::Arc};

    use lockkit_core::ErrorKind;
    use redis::{
        Client, ClientTlsConfig, ConnectionInfo, RedisError, TlsCertificates, TlsMode,
        cluster::ClusterClientBuilder,
    };
    use rustls::AlertDescription as Alert;

    use super::Tls;
    use crate::error::{Effect, Fault};

    /// What connects to one server.
    pub(crate) fn client(tls: &Tls, info: ConnectionInfo) -> Result<Client, Fault> {
        Client::build_with_tls(info, tls.certificates()?).map_err(unusable)
    }

    /// What connects to a cluster.
    pub(crate) fn of_cluster(
        tls: &Tls,
        builder: ClusterClientBuilder,
    ) -> Result<ClusterClientBuilder, Fault> {
        Ok(builder.tls(TlsMode::Secure).certs(tls.certificates()?))
    }

    impl Tls {
        /// For the client crate.
        fn certificates(&self) -> Result<TlsCertificates, Fault> {
            let client_tls = match &self.identity {
                None => None,
                Some((certificate, key)) => Some(ClientTlsConfig {
                    client_cert: read(certificate, "CERTIFICATE")?,
                    client_key: read(key, "PRIVATE KEY")?,
                }),
            };
            let root_cert = self.ca.as_deref().map(|ca| read(ca, "CERTIFICATE")).transpose()?;
            Ok(TlsCertificates { client_tls, root_cert })
        }
    }

    /// A PEM file with at least one section of this kind. (The client crate takes an empty one for "trust nobody".)
    fn read(file: &Path, section: &str) -> Result<Vec<u8>, Fault> {
        let unusable = |why: &dyn std::fmt::Display| {
            let message = format!("TLS file {}: {why}", file.display());
            Fault::new(Effect::Refused, ErrorKind::InvalidConfig, message)
        };
        let text = std::fs::read_to_string(file).map_err(|cause| unusable(&cause))?;
        let has_section = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(section));
        if has_section {
            Ok(text.into_bytes())
        } else {
            Err(unusable(&format!("no PEM section {section:?} in it")))
        }
    }

    fn unusable(error: RedisError) -> Fault {
        Fault::new(Effect::Refused, ErrorKind::InvalidConfig, format!("TLS files: {error}"))
    }

    /// Whether one side does not trust the other, or the other has no certificate to show.
    pub(crate) fn is_refusal(error: &RedisError) -> bool {
        std::iter::successors(Some(error as &(dyn StdError + 'static)), |&error| error.source())
            .any(is_distrust)
    }

    fn is_distrust(cause: &(dyn StdError + 'static)) -> bool {
        // The client crate's source is a shared error, not the error.
        if let Some(shared) = cause.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
            return is_distrust(&**shared);
        }
        // rustls' own error is inside that of the connection, but not its source.
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        matches!(
            inner.and_then(|inner| inner.downcast_ref()).or_else(|| cause.downcast_ref()),
            Some(
                rustls::Error::InvalidCertificate(_)
                    | rustls::Error::AlertReceived(
                        Alert::AccessDenied
                            | Alert::BadCertificate
                            | Alert::CertificateExpired
                            | Alert::CertificateRequired
                            | Alert::CertificateRevoked
                            | Alert::CertificateUnknown
                            | Alert::UnknownCA
                            | Alert::UnsupportedCertificate
                    )
            )
        )
    }
}

#[cfg(feature = "tls")]
pub(crate) use with_tls::{client, is_refusal, of_cluster};

/// What a build without TLS makes of it: a refusal.
#[cfg(not(feature = "tls"))]
mod without_tls {
    use lockkit_core::ErrorKind;
    use redis::{Client, ConnectionInfo, RedisError, cluster::ClusterClientBuilder};

    use super::{NOT_IN_THIS_BUILD, Tls};
    use crate::error::{Effect, Fault};

    pub(crate) fn client(_tls: &Tls, _info: ConnectionInfo) -> Result<Client, Fault> {
        Err(refusal())
    }

    pub(crate) fn of_cluster(
        _tls: &Tls,
        _builder: ClusterClientBuilder,
    ) -> Result<ClusterClientBuilder, Fault> {
        Err(refusal())
    }

    pub(crate) fn is_refusal(_error: &RedisError) -> bool {
        false
    }

    fn refusal() -> Fault {
        Fault::new(Effect::Refused, ErrorKind::Unsupported, NOT_IN_THIS_BUILD)
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) use without_tls::{client, is_refusal, of_cluster};
