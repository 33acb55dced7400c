//! TLS: whom to trust, and who to be.

use std::path::PathBuf;

use lockkit_core::{Error, ErrorKind};

/// TLS towards ZooKeeper: whom to trust, and who to be. Needs the feature `tls`.
///
/// The server's certificate must be valid now, for the name or address by which it is named, and issued by an authority
/// that is trusted. There is no way to turn that off, and no way back to a connection without TLS.
///
/// The files are PEM, and are read whenever a session begins: renewed certificates need no restart.
///
/// ```
/// use lockkit_zk::{Tls, ZkConfig};
///
/// let tls = Tls::new().ca("/etc/zookeeper/ca.pem").identity("/etc/app/app.pem", "/etc/app/app-key.pem");
/// let config = ZkConfig::new(["10.0.0.1:2281"])?.tls(tls);
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

pub(crate) const NOT_IN_THIS_BUILD: &str = "TLS (zks://) needs the feature \"tls\"";

pub(crate) fn not_in_this_build() -> Error {
    Error::new(ErrorKind::Unsupported, "configure zookeeper").with_message(NOT_IN_THIS_BUILD)
}

#[cfg(feature = "tls")]
mod with_tls {
    use std::{error::Error as StdError, io, path::Path, sync::Arc, time::Duration};

    use base64::{Engine, prelude::BASE64_STANDARD};
    use lockkit_core::ErrorKind;
    use rustls::{
        AlertDescription as Alert, ClientConfig, RootCertStore,
        crypto::{CryptoProvider, aws_lc_rs},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    };
    use tokio::{io::AsyncReadExt, net::TcpStream};
    use tokio_rustls::TlsConnector;
    use zookeeper_client::TlsOptions;

    use super::Tls;
    use crate::error::{Effect, Fault};

    impl Tls {
        /// For the client crate, which takes every name of a server for one that a certificate can have.
        pub(crate) fn options<'a>(
            &self,
            servers: impl Iterator<Item = &'a str>,
        ) -> Result<TlsOptions, Fault> {
            for server in servers {
                server_name(server).ok_or_else(|| {
                    Fault::invalid_config(format!("no certificate can be valid for the server {server:?}"))
                })?;
            }
            // The client crate asks for the process' own choice, and panics where there is none.
            if CryptoProvider::get_default().is_none() {
                // Another thread was faster: as good.
                let _ = aws_lc_rs::default_provider().install_default();
            }
            let ca = match &self.ca {
                None => system_authorities(),
                Some(file) => read(file, "CERTIFICATE")?,
            };
            let options = TlsOptions::new().with_pem_ca(&ca)?;
            let Some((certificate, key)) = &self.identity else { return Ok(options) };
            Ok(options.with_pem_identity(&read(certificate, "CERTIFICATE")?, &read(key, "PRIVATE KEY")?)?)
        }

        /// Whether this server and this client do not trust each other; the client crate says only that it could not
        /// connect.
        ///
        /// By TLS 1.3 a server refuses a client's certificate after the handshake: so this listens for a moment.
        pub(crate) async fn refusal(&self, server: &str, timeout: Duration) -> Option<Fault> {
            let connector = TlsConnector::from(Arc::new(self.client_config()?));
            let host = server_name(server)?;
            let listen = async {
                let connection = TcpStream::connect(server).await?;
                connector.connect(host, connection).await?.read_u8().await
            };
            let end = tokio::time::timeout(timeout, listen).await.ok()?.err()?;
            let why = || Fault::new(Effect::Refused, ErrorKind::Denied, format!("cannot connect: {end}"));
            is_refusal(&end).then(why)
        }

        /// `None` where [`options`](Self::options) has failed too, and said why.
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
            match &self.identity {
                None => Some(config.with_no_client_auth()),
                Some((certificate, key)) => {
                    let key = PrivateKeyDer::from_pem_file(key).ok()?;
                    config.with_client_auth_cert(certificates(certificate)?, key).ok()
                }
            }
        }
    }

    fn server_name(server: &str) -> Option<ServerName<'static>> {
        let (host, _) = server.rsplit_once(':')?;
        ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()
    }

    fn system_authorities() -> String {
        let pem = |certificate: &CertificateDer<'_>| {
            let text = BASE64_STANDARD.encode(certificate);
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        rustls_native_certs::load_native_certs().certs.iter().map(pem).collect()
    }

    fn certificates(file: &Path) -> Option<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_file_iter(file).ok()?.collect::<Result<_, _>>().ok()
    }

    /// A PEM file with at least one section of this kind.
    fn read(file: &Path, section: &str) -> Result<String, Fault> {
        let unusable = |why: &dyn std::fmt::Display| {
            Fault::invalid_config(format!("TLS file {}: {why}", file.display()))
        };
        let text = std::fs::read_to_string(file).map_err(|cause| unusable(&cause))?;
        let has_section = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(section));
        if has_section { Ok(text) } else { Err(unusable(&format!("no PEM section {section:?} in it"))) }
    }

    /// Whether this says that one side does not trust the other, or the other has no certificate to show.
    fn is_refusal(cause: &(dyn StdError + 'static)) -> bool {
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
