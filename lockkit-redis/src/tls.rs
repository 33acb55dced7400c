//! TLS settings for the client crate of Redis.

use std::{error::Error as StdError, sync::Arc};

use lockkit_core::{
    Error, ErrorKind,
    backend::tls::{Tls, is_distrust},
};
use redis::{Client, ConnectionInfo, RedisError, cluster::ClusterClientBuilder};

use crate::error::{Effect, RequestError};

const NOT_IN_THIS_BUILD: &str = "TLS (rediss://) needs the feature \"tls\"";

pub(crate) fn not_in_this_build() -> Error {
    Error::new(ErrorKind::Unsupported, "configure Redis").with_message(NOT_IN_THIS_BUILD)
}

/// Returns whether one side does not trust the other, or lacks a certificate.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |&error| error.source()).any(|cause| {
        // The client crate wraps its source in a shared error.
        match cause.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
            Some(shared) => is_distrust(&**shared),
            None => is_distrust(cause),
        }
    })
}

#[cfg(feature = "tls")]
mod with_tls {
    use redis::{ClientTlsConfig, TlsCertificates, TlsMode};

    use super::*;

    /// Returns a client for one server.
    pub(crate) fn client(tls: &Tls, info: ConnectionInfo) -> Result<Client, RequestError> {
        let unusable = |error: RedisError| invalid(format!("TLS files: {error}"));
        Client::build_with_tls(info, certificates(tls)?).map_err(unusable)
    }

    /// Sets TLS for a cluster.
    pub(crate) fn of_cluster(
        tls: &Tls,
        builder: ClusterClientBuilder,
    ) -> Result<ClusterClientBuilder, RequestError> {
        Ok(builder.tls(TlsMode::Secure).certs(certificates(tls)?))
    }

    fn certificates(tls: &Tls) -> Result<TlsCertificates, RequestError> {
        let pem = tls.read().map_err(|unusable| invalid(unusable.to_string()))?;
        let client_tls = pem.identity.map(|(certificate, key)| ClientTlsConfig {
            client_cert: certificate.into_bytes(),
            client_key: key.into_bytes(),
        });
        Ok(TlsCertificates { client_tls, root_cert: pem.ca.map(String::into_bytes) })
    }

    fn invalid(message: String) -> RequestError {
        RequestError::new(Effect::Refused, ErrorKind::InvalidConfig, message)
    }
}

/// In a build without TLS, both refuse.
#[cfg(not(feature = "tls"))]
mod with_tls {
    use super::*;

    pub(crate) fn client(_tls: &Tls, _info: ConnectionInfo) -> Result<Client, RequestError> {
        Err(refusal())
    }

    pub(crate) fn of_cluster(
        _tls: &Tls,
        _builder: ClusterClientBuilder,
    ) -> Result<ClusterClientBuilder, RequestError> {
        Err(refusal())
    }

    fn refusal() -> RequestError {
        RequestError::new(Effect::Refused, ErrorKind::Unsupported, NOT_IN_THIS_BUILD)
    }
}

pub(crate) use with_tls::{client, of_cluster};
