//! Opens a session at the first server that answers, with the configured login and TLS.

use std::time::Duration;

use lockkit_core::ErrorKind;
use zookeeper_client::{Client, Connector};

use crate::{
    ZkConfig,
    config::Login,
    error::{Effect, RequestError},
    tls::with_tls,
    wire::bounded,
};

/// Opens a session; tries every server once.
pub(crate) async fn connect(config: &ZkConfig, ttl: Duration) -> Result<Client, RequestError> {
    let connector = Client::connector().with_session_timeout(ttl).with_fail_eagerly();
    let connector = with_trust(config, with_login(config, connector)?)?;
    let servers = config.connect_string();
    let connected = async { Ok(connector.connect(&servers).await?) };
    match bounded(config.connect_timeout(), connected).await {
        Err(error) if error.is_transient() => Err(with_tls_reason(config, error).await),
        connected => connected,
    }
}

fn with_login(config: &ZkConfig, connector: Connector) -> Result<Connector, RequestError> {
    match &config.login {
        None => Ok(connector),
        Some((user, password, Login::Digest)) => {
            Ok(connector.with_auth("digest", format!("{user}:{password}").as_bytes()))
        }
        Some((user, password, Login::SaslDigestMd5)) => with_sasl(connector, user, password),
    }
}

#[cfg(feature = "sasl")]
fn with_sasl(connector: Connector, user: &str, password: &str) -> Result<Connector, RequestError> {
    let login = zookeeper_client::SaslOptions::digest_md5(user.to_owned(), password.to_owned());
    Ok(connector.with_sasl(login))
}

#[cfg(not(feature = "sasl"))]
fn with_sasl(_connector: Connector, _user: &str, _password: &str) -> Result<Connector, RequestError> {
    Err(RequestError::unsupported("SASL needs the feature \"sasl\""))
}

fn with_trust(config: &ZkConfig, connector: Connector) -> Result<Connector, RequestError> {
    match &config.tls {
        None => Ok(connector),
        Some(tls) => with_tls(connector, tls, &config.servers),
    }
}

/// Replaces the client crate's "cannot connect" by what the TLS handshake reports, if TLS is the reason.
async fn with_tls_reason(config: &ZkConfig, error: RequestError) -> RequestError {
    let Some(tls) = &config.tls else { return error };
    for server in &config.servers {
        if let Some(reason) = tls.refusal(server, None, config.request_timeout).await {
            return RequestError::new(
                Effect::Refused,
                ErrorKind::Denied,
                format!("cannot connect: {reason}"),
            );
        }
    }
    error
}
