//! The part that needs a TLS library: classifies handshake failures, and repeats a handshake whose reason was lost.

use std::{error::Error as StdError, io, path::Path, sync::Arc, time::Duration};

use rustls::{
    AlertDescription as Alert, ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{io::AsyncReadExt, net::TcpStream};
use tokio_rustls::TlsConnector;

use super::Tls;

impl Tls {
    /// Connects to this server (`HOST:PORT`) and returns why server and client do not trust each other, if so.
    ///
    /// Returns `None` if they trust each other or if the reason is unknown. `protocol` is the ALPN protocol that the
    /// server expects, if any.
    ///
    /// In TLS 1.3 a server refuses a wrong or missing client certificate after the handshake and closes the
    /// connection. A client that is sending then may get a reset before it has read the reason (RFC 8446, appendix
    /// E.6). This call sends nothing after the handshake and only reads.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn refusal(
        &self,
        server: &str,
        protocol: Option<&str>,
        timeout: Duration,
    ) -> Option<io::Error> {
        let mut config = self.client_config()?;
        config.alpn_protocols.extend(protocol.map(|protocol| protocol.as_bytes().to_vec()));
        let connector = TlsConnector::from(Arc::new(config));
        let host = server_name(server)?;
        let listen = async {
            let connection = TcpStream::connect(server).await?;
            connector.connect(host, connection).await?.read_u8().await
        };
        tokio::time::timeout(timeout, listen).await.ok()?.err().filter(|end| is_distrust(end))
    }

    /// Returns `None` if the files are unusable; then [`read`](Self::read) or the client crate has reported why.
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

/// Returns whether an error, of rustls or of a connection through it, means that one side does not trust the other or
/// that the other side lacks a certificate.
pub fn is_distrust(cause: &(dyn StdError + 'static)) -> bool {
    // The error of rustls is inside the connection's error, but is not its source.
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

/// Returns whether a certificate can be valid for this server (`HOST:PORT`).
pub fn can_be_certified(server: &str) -> bool {
    server_name(server).is_some()
}

fn server_name(server: &str) -> Option<ServerName<'static>> {
    let (host, _) = server.rsplit_once(':')?;
    ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()
}

fn certificates(file: &Path) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(file).ok()?.collect::<Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use rustls::CertificateError;

    use super::*;

    #[test]
    fn lack_of_trust_differs_from_other_connection_errors() {
        let distrust = || rustls::Error::InvalidCertificate(CertificateError::Expired);
        assert!(is_distrust(&distrust()));
        assert!(is_distrust(&io::Error::other(distrust())));
        assert!(is_distrust(&rustls::Error::AlertReceived(Alert::CertificateRequired)));
        assert!(!is_distrust(&rustls::Error::AlertReceived(Alert::InternalError)));
        assert!(!is_distrust(&io::Error::other(rustls::Error::HandshakeNotComplete)));
        assert!(!is_distrust(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }

    #[test]
    fn server_that_refuses_the_certificate_is_distrust_for_each_reason() {
        for alert in [
            Alert::AccessDenied,
            Alert::BadCertificate,
            Alert::CertificateExpired,
            Alert::CertificateRequired,
            Alert::CertificateRevoked,
            Alert::CertificateUnknown,
            Alert::UnknownCA,
            Alert::UnsupportedCertificate,
        ] {
            assert!(is_distrust(&io::Error::other(rustls::Error::AlertReceived(alert))), "{alert:?}");
        }
    }

    #[test]
    fn hosts_without_possible_certificates_are_recognised() {
        for server in ["h:1", "a.example:1", "127.0.0.1:1", "[::1]:1"] {
            assert!(can_be_certified(server), "{server}");
        }
        for server in ["not_a..name:1", "h", ":1"] {
            assert!(!can_be_certified(server), "{server}");
        }
    }
}
