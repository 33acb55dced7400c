//! What needs a TLS library: whether a failure is for want of trust, and asking again for a reason that got lost.

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
    /// Why this server (`HOST:PORT`) and this client do not trust each other; none where they do, or where that does
    /// not become known. `protocol` is the one that the server wants to have named, if any.
    ///
    /// By TLS 1.3 a server says that it refuses the client's certificate, or the lack of one, after the handshake and
    /// ends the connection, and a client that is sending then may find the connection reset before it has read the
    /// reason (RFC 8446, appendix E.6). This one sends nothing, and listens for a moment.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only listens.
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

    /// `None` where [`read`](Self::read), or the client crate, has failed too and said why.
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

/// Whether this error, of rustls or of a connection through it, says that one side does not trust the other, or that
/// the other has no certificate to show.
pub fn is_distrust(cause: &(dyn StdError + 'static)) -> bool {
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

/// Whether a certificate can be valid for this server (`HOST:PORT`).
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
    fn want_of_trust_is_told_from_other_ends_of_a_connection() {
        let distrust = || rustls::Error::InvalidCertificate(CertificateError::Expired);
        assert!(is_distrust(&distrust()));
        assert!(is_distrust(&io::Error::other(distrust())));
        assert!(is_distrust(&rustls::Error::AlertReceived(Alert::CertificateRequired)));
        assert!(!is_distrust(&rustls::Error::AlertReceived(Alert::InternalError)));
        assert!(!is_distrust(&io::Error::other(rustls::Error::HandshakeNotComplete)));
        assert!(!is_distrust(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }

    #[test]
    fn hosts_that_no_certificate_names_are_known() {
        for server in ["h:1", "a.example:1", "127.0.0.1:1", "[::1]:1"] {
            assert!(can_be_certified(server), "{server}");
        }
        for server in ["not_a..name:1", "h", ":1"] {
            assert!(!can_be_certified(server), "{server}");
        }
    }
}
