//! TLS options of the connection.

use lockkit_core::{Error, ErrorKind, backend::tls::Tls};

use crate::{
    client::ConnectOptions,
    error::{Effect, RequestError},
};

const NOT_IN_THIS_BUILD: &str = "TLS (https://, etcds://) needs the feature \"tls\"";

pub(crate) fn not_in_this_build() -> Error {
    Error::new(ErrorKind::Unsupported, "configure etcd").with_message(NOT_IN_THIS_BUILD)
}

/// Returns the options with TLS.
#[cfg(feature = "tls")]
pub(crate) fn with_tls(options: ConnectOptions, tls: &Tls) -> Result<ConnectOptions, RequestError> {
    use tonic::transport::{Certificate, ClientTlsConfig as TlsOptions, Identity};

    let unusable = |file: lockkit_core::backend::tls::UnusableFile| {
        RequestError::new(Effect::NotSent, ErrorKind::InvalidConfig, file.to_string())
    };
    let pem = tls.read().map_err(unusable)?;
    let trusting = match pem.ca {
        None => TlsOptions::new().with_native_roots(),
        Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
    };
    Ok(options.with_tls(match pem.identity {
        None => trusting,
        Some((certificate, key)) => trusting.identity(Identity::from_pem(certificate, key)),
    }))
}

#[cfg(not(feature = "tls"))]
pub(crate) fn with_tls(_options: ConnectOptions, _tls: &Tls) -> Result<ConnectOptions, RequestError> {
    Err(RequestError::new(Effect::NotSent, ErrorKind::Unsupported, NOT_IN_THIS_BUILD))
}
