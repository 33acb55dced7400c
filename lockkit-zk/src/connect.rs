//! Opening a session: at whichever server answers first, with the login and the trust that are configured.

use std::time::Duration;

use lockkit_core::ErrorKind;
use zookeeper_client::{Client, Connector};

use crate::{
    ZkConfig,
    call::bounded,
    config::Login,
    error::{Effect, Fault},
    tls::with_tls,
};

/// Opens a session. Every server is tried once.
pub(crate) async fn connect(config: &ZkConfig, ttl: Duration) -> Result<Client, Fault> {
    let connector = Client::connector().with_session_timeout(ttl).with_fail_eagerly();
    let connector = with_trust(config, with_login(config, connector)?)?;
    let servers = config.connect_string();
    let connected = async { Ok(connector.connect(&servers).await?) };
    match bounded(config.connect_timeout(), connected).await {
        Err(fault) if fault.may_pass() => Err(explained(config, fault).await),
        connected => connected,
    }
}

fn with_login(config: &ZkConfig, connector: Connector) -> Result<Connector, Fault> {
    match &config.login {
        None => Ok(connector),
        Some((user, password, Login::Digest)) => {
            Ok(connector.with_auth("digest", format!("{user}:{password}").as_bytes()))
        }
        Some((user, password, Login::SaslDigestMd5)) => with_sasl(connector, user, password),
    }
}

#[cfg(feature = "sasl")]
fn with_sasl(connector: Connector, user: &str, password: &str) -> Result<Connector, Fault> {
    let login = zookeeper_client::SaslOptions::digest_md5(user.to_owned(), password.to_owned());
    Ok(connector.with_sasl(login))
}

#[cfg(not(feature = "sasl"))]
fn with_sasl(_connector: Connector, _user: &str, _password: &str) -> Result<Connector, Fault> {
    Err(Fault::unsupported("SASL needs the feature \"sasl\""))
}

fn with_trust(config: &ZkConfig, connector: Connector) -> Result<Connector, Fault> {
    match &config.tls {
        None => Ok(connector),
        Some(tls) => with_tls(connector, tls, &config.servers),
    }
}

/// The reason of a failure, or what was said: the client crate says only that it could not connect.
async fn explained(config: &ZkConfig, fault: Fault) -> Fault {
    let Some(tls) = &config.tls else { return fault };
    for server in &config.servers {
        if let Some(end) = tls.refusal(server, None, config.request_timeout).await {
            return Fault::new(Effect::Refused, ErrorKind::Denied, format!("cannot connect: {end}"));
        }
    }
    fault
}
