//! TLS for ZooKeeper's client crate.

use lockkit_core::{Error, ErrorKind, backend::tls::Tls};
use zookeeper_client::Connector;

use crate::error::RequestError;

const NOT_IN_THIS_BUILD: &str = "TLS (zks://) needs the feature \"tls\"";

pub(crate) fn not_in_this_build() -> Error {
    Error::new(ErrorKind::Unsupported, "configure zookeeper").with_message(NOT_IN_THIS_BUILD)
}

/// Adds TLS towards these servers.
#[cfg(feature = "tls")]
pub(crate) fn with_tls(
    connector: Connector,
    tls: &Tls,
    servers: &[String],
) -> Result<Connector, RequestError> {
    use rustls::crypto::{CryptoProvider, aws_lc_rs};
    use zookeeper_client::TlsOptions;

    // The client crate assumes that a certificate can be valid for every server name.
    if let Some(server) = servers.iter().find(|server| !lockkit_core::backend::tls::can_be_certified(server))
    {
        let message = format!("no certificate can be valid for the server {server:?}");
        return Err(RequestError::invalid_config(message));
    }
    // The client crate panics if the process has not installed a provider.
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread installed it meanwhile.
        let _ = aws_lc_rs::default_provider().install_default();
    }
    let pem = tls.read().map_err(|unusable| RequestError::invalid_config(unusable.to_string()))?;
    let trusting = TlsOptions::new().with_pem_ca(&pem.ca.unwrap_or_else(system_authorities))?;
    Ok(connector.with_tls(match pem.identity {
        None => trusting,
        Some((certificate, key)) => trusting.with_pem_identity(&certificate, &key)?,
    }))
}

#[cfg(not(feature = "tls"))]
pub(crate) fn with_tls(
    _connector: Connector,
    _tls: &Tls,
    _servers: &[String],
) -> Result<Connector, RequestError> {
    Err(RequestError::unsupported(NOT_IN_THIS_BUILD))
}

/// Returns the certificate authorities that the system trusts, as PEM.
#[cfg(feature = "tls")]
fn system_authorities() -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let pem = |certificate: &rustls::pki_types::CertificateDer<'_>| {
        let text = BASE64_STANDARD.encode(certificate);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    };
    rustls_native_certs::load_native_certs().certs.iter().map(pem).collect()
}
