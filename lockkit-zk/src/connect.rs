//! Opens a session at the first server that answers, with the configured login and TLS.
//!
//! Failure cases:
//!
//! * No server opens one: the error names each of them and [why](crate::reach).
//! * The login is refused: the error says which, and what to change. By the scheme `digest`, no password is wrong: a user
//!   with another one is another identity, which an ACL then does not admit.

use std::time::Duration;

use zookeeper_client::{Client, Connector};

use crate::{
    ZkConfig,
    config::Login,
    error::{Effect, RequestError},
    reach,
    tls::with_tls,
    wire::bounded,
};

/// Opens a session; tries every server once.
pub(crate) async fn connect(config: &ZkConfig, ttl: Duration) -> Result<Client, RequestError> {
    let connector = Client::connector().with_session_timeout(ttl).with_fail_eagerly();
    let connector = with_trust(config, with_login(config, connector)?)?;
    let servers = config.connect_string();
    let connected = async { Ok(connector.connect(&servers).await?) };
    bounded(config.connect_timeout(), connected).await
}

/// Adds the cause and the remedy to the error of a session that could not be opened.
pub(crate) async fn explained(config: &ZkConfig, error: RequestError) -> RequestError {
    match error.effect {
        _ if error.is_transient() => reach::explained(config, error).await,
        Effect::SessionOver if error.is_denied() => {
            let message = refused_login(config);
            error.with_message(message)
        }
        Effect::Refused if error.is_denied() => {
            let message = missing_permission(config);
            error.with_message(message)
        }
        _ => error,
    }
}

fn refused_login(config: &ZkConfig) -> String {
    match &config.login {
        None => "the servers require a login: configure a user and a password, and SASL (login=sasl) if they require that"
            .to_owned(),
        Some((user, _, Login::SaslDigestMd5)) => {
            format!("the servers refuse the SASL login of user {user:?}: check the user and the password")
        }
        Some((user, _, Login::Digest)) => {
            format!("the servers do not admit user {user:?} by the scheme digest; if they require SASL, use login=sasl")
        }
    }
}

fn missing_permission(config: &ZkConfig) -> String {
    let root = format!("{}{}", config.chroot, config.layout().directory());
    let who = match &config.login {
        None => "without a login".to_owned(),
        // The servers may go on without a login that they refuse.
        Some((user, _, Login::SaslDigestMd5)) => {
            format!("as user {user:?} (check the user and the password, too)")
        }
        Some((user, _, Login::Digest)) => {
            format!("as user {user:?} (if the password is wrong, that is another identity)")
        }
    };
    format!(
        "the ACLs do not permit to create nodes in {root} {who}: see `getAcl {root}` in ZooKeeper's shell"
    )
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
