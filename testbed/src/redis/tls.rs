//! A Redis server that speaks TLS.

use anyhow::Result;

use super::Redis;
use crate::{Certificates, ServerCertificate, address::free_ports};

impl Redis {
    /// As [`start`](Self::start), with TLS at its [`url`](Self::url). With `asks_clients` clients must show a
    /// certificate of the same authority.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_tls(authority: &Certificates, shows: ServerCertificate, asks_clients: bool) -> Result<Self> {
        let mut redis = Self::prepare(&[])?;
        let identity = authority.server(redis.address.into(), shows, redis.folder())?;
        let [port] = free_ports(redis.address)?;
        redis.tls_port = Some(port);
        redis.extra_arguments.extend([
            "--tls-port".to_owned(),
            port.to_string(),
            "--tls-cert-file".to_owned(),
            identity.certificate.display().to_string(),
            "--tls-key-file".to_owned(),
            identity.key.display().to_string(),
            "--tls-ca-cert-file".to_owned(),
            authority.ca().display().to_string(),
            "--tls-auth-clients".to_owned(),
            if asks_clients { "yes" } else { "no" }.to_owned(),
        ]);
        redis.restart()?;
        Ok(redis)
    }
}
