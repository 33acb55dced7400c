//! A first TLS handshake, to see that a server answers one.

use std::{
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::aws_lc_rs};

/// Longest time until the server replies.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Whether the server at this address presents a certificate. The handshake itself fails: no authority is trusted here.
pub(crate) fn is_answered(address: SocketAddr) -> bool {
    try_once(address).is_ok_and(|answer| {
        answer.is_err_and(|error| error.get_ref().is_some_and(|why| why.is::<rustls::Error>()))
    })
}

fn try_once(address: SocketAddr) -> Result<std::io::Result<(usize, usize)>> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let mut connection = ClientConnection::new(Arc::new(config), address.ip().into())?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    Ok(connection.complete_io(&mut stream))
}
