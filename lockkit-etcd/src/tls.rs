//! TLS: whom to trust, and who to be.

use std::path::PathBuf;

use lockkit_core::{Error, ErrorKind};

/// TLS towards etcd: whom to trust, and who to be. Needs the feature `tls`.
///
/// The server's certificate must be valid now, for the name or address by which its endpoint is named, and issued by an
/// authority that is trusted. There is no way to turn that off, and no way back to a connection without TLS.
///
/// The files are PEM, and are read whenever a session begins: renewed certificates need no restart.
///
/// ```
/// use lockkit_etcd::{EtcdConfig, Tls};
///
/// let tls = Tls::new().ca("/etc/etcd/ca.pem").identity("/etc/app/app.pem", "/etc/app/app-key.pem");
/// let config = EtcdConfig::new(["10.0.0.1:2379"])?.tls(tls);
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

pub(crate) const NOT_IN_THIS_BUILD: &str = "TLS (https://, etcds://) needs the feature \"tls\"";

pub(crate) fn not_in_this_build() -> Error {
    Error::new(ErrorKind::Unsupported, "configure etcd").with_message(NOT_IN_THIS_BUILD)
}

#[cfg(feature = "tls")]
mod with_tls {
    use std::{error::Error as StdError, io, path::Path, sync::Arc, time::Duration};

    use etcd_client::{Certificate, Identity, TlsOptions};
    use lockkit_core::ErrorKind;
    use rustls::{
        AlertDescription as Alert, ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    };
    use tokio::{io::AsyncReadExt, net::TcpStream};
    use tokio_rustls::TlsConnector;

    use super::Tls;
    use crate::error::{Effect, Fault};

    impl Tls {
        /// For the client crate.
        pub(crate) fn options(&self) -> Result<TlsOptions, Fault> {
            let options = match &self.ca {
                None => TlsOptions::new().with_native_roots(),
                Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca, "CERTIFICATE")?)),
            };
            let Some((certificate, key)) = &self.identity else { return Ok(options) };
            let (certificate, key) = (read(certificate, "CERTIFICATE")?, read(key, "PRIVATE KEY")?);
            Ok(options.identity(Identity::from_pem(certificate, key)))
        }

        /// Whether this server refuses the client's certificate, or the lack of one.
        ///
        /// By TLS 1.3 it says so after the handshake and ends the connection, and a client that is sending then may
        /// find the connection reset before it has read the reason (RFC 8446, appendix E.6, and hyper drops the
        /// request without it). This one sends nothing.
        pub(crate) async fn refusal(&self, endpoint: &str, timeout: Duration) -> Option<Fault> {
            let connector = TlsConnector::from(Arc::new(self.client_config()?));
            let (host, _) = endpoint.rsplit_once(':')?;
            let host = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()?;
            let listen = async {
                let connection = TcpStream::connect(endpoint).await?;
                connector.connect(host, connection).await?.read_u8().await
            };
            let end = tokio::time::timeout(timeout, listen).await.ok()?.err()?;
            is_refusal(&end).then(|| Fault::not_connected(&end))
        }

        /// `None` where the client crate has failed too, and said why.
        fn client_config(&self) -> Option<ClientConfig> {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(match &self.ca {
                None => rustls_native_certs::load_native_certs().certs,
                Some(ca) => certificates(ca)?,
            });
            let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .ok()?
                .with_root_certificates(roots);
            let mut config = match &self.identity {
                None => config.with_no_client_auth(),
                Some((certificate, key)) => config
                    .with_client_auth_cert(
                        certificates(certificate)?,
                        PrivateKeyDer::from_pem_file(key).ok()?,
                    )
                    .ok()?,
            };
            config.alpn_protocols.push(b"h2".to_vec());
            Some(config)
        }
    }

    fn certificates(file: &Path) -> Option<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_file_iter(file).ok()?.collect::<Result<_, _>>().ok()
    }

    /// A PEM file with at least one section of this kind. (The client crate takes an empty one for "trust nobody".)
    fn read(file: &Path, section: &str) -> Result<String, Fault> {
        let unusable = |why: &dyn std::fmt::Display| {
            let message = format!("TLS file {}: {why}", file.display());
            Fault::new(Effect::NotSent, ErrorKind::InvalidConfig, message)
        };
        let text = std::fs::read_to_string(file).map_err(|cause| unusable(&cause))?;
        let has_section = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(section));
        if has_section { Ok(text) } else { Err(unusable(&format!("no PEM section {section:?} in it"))) }
    }

    /// Whether this cause says that one side does not trust the other, or the other has no certificate to show.
    pub(crate) fn is_refusal(cause: &(dyn StdError + 'static)) -> bool {
        // rustls' own error is inside that of the connection, but not its source.
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        matches!(
            inner.and_then(|inner| inner.downcast_ref()),
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
pub(crate) use with_tls::is_refusal;

/// What a build without TLS makes of it: nothing.
#[cfg(not(feature = "tls"))]
mod without_tls {
    use std::{error::Error as StdError, time::Duration};

    use super::Tls;
    use crate::error::Fault;

    impl Tls {
        pub(crate) async fn refusal(&self, _endpoint: &str, _timeout: Duration) -> Option<Fault> {
            None
        }
    }

    pub(crate) fn is_refusal(_cause: &(dyn StdError + 'static)) -> bool {
        false
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) use without_tls::is_refusal;
