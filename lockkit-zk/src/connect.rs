//! Opens a session at the first server that answers, with the configured login and TLS.
//!
//! Failure cases:
//!
//! * No server opens one: the error names each of them and [why](crate::reach).
//! * A server accepts the connection and stays silent: the next one is tried after a fifth of the ttl at
//!   most. So does an open session, which survives two silent servers in a row.
//! * The login is refused: the error says which, and what to change. By the scheme `digest`, no password is wrong: a user
//!   with another one is another identity, which an ACL then does not admit.

use std::time::Duration;

use lockkit_core::support::bounded;
use zookeeper_client::{Client, Connector};

use crate::{
    ZkConfig,
    config::Login,
    error::{Effect, RequestError},
    reach,
    tls::with_tls,
};

/// Silent servers that a client can try in one ttl.
const SILENCES_PER_TTL: u32 = 5;

/// A connection is not given up earlier for its silence, unless the ttl is short: the client crate sends about three pings
/// in that time, and a server may be busy.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// Opens a session; tries every server once.
pub(crate) async fn connect(config: &ZkConfig, ttl: Duration) -> Result<Client, RequestError> {
    let connector = Client::connector()
        .with_session_timeout(ttl)
        .with_connection_timeout(silence_max(config, ttl))
        .with_fail_eagerly();
    let connector = with_trust(config, with_login(config, connector)?)?;
    let servers = config.connect_string();
    let connected = async { Ok(connector.connect(&servers).await?) };
    bounded(open_max(config, ttl), connected).await
}

/// Returns how long a server may be silent until the client tries another one. The client crate's own choice, 0.4 ttl,
/// would let two silent servers in a row cost the session, and one of them the time in which a session must be open.
fn silence_max(config: &ZkConfig, ttl: Duration) -> Duration {
    (ttl / SILENCES_PER_TTL).min(config.request_timeout.max(SILENCE_MIN))
}

/// Returns the time in which every server is tried.
fn open_max(config: &ZkConfig, ttl: Duration) -> Duration {
    let servers = u32::try_from(config.servers.len()).unwrap_or(u32::MAX);
    config.request_timeout.max(silence_max(config, ttl)).saturating_mul(servers)
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
    let layout = config.layout();
    let root = match layout.directory() {
        "/" if !config.chroot.is_empty() => config.chroot.clone(),
        directory => format!("{}{directory}", config.chroot),
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// One healthy server of several is reached in time, and a busy one is not left for its latency.
    #[test]
    fn silent_servers_cost_a_part_of_the_time_to_open_and_of_the_ttl() {
        let times = |servers: &[&str], request: u64, ttl: u64| {
            let timeout = Duration::from_millis(request);
            let config = ZkConfig::new(servers).unwrap().request_timeout(timeout);
            let ttl = Duration::from_millis(ttl);
            (silence_max(&config, ttl).as_millis(), open_max(&config, ttl).as_millis())
        };
        assert_eq!(times(&["a", "b", "c"], 3_000, 15_000), (3_000, 9_000));
        assert_eq!(times(&["a", "b", "c"], 3_000, 60_000), (3_000, 9_000));
        assert_eq!(times(&["a"], 3_000, 5_000), (1_000, 3_000));
        assert_eq!(times(&["a", "b"], 100, 60_000), (1_000, 2_000));
        assert_eq!(times(&["a", "b"], 100, 2_000), (400, 800));
    }

    /// ZooKeeper's shell knows nothing of the client's chroot.
    #[test]
    fn missing_permission_is_that_of_a_node_below_the_chroot() {
        let config = ZkConfig::new(["h"]).unwrap().chroot("/prod").unwrap();
        let message = missing_permission(&config);
        assert!(
            message.contains("in /prod/lockkit ") && message.contains("`getAcl /prod/lockkit`"),
            "{message}"
        );
        let message = missing_permission(&config.clone().root("/jobs").unwrap());
        assert!(message.contains("in /prod/jobs ") && message.contains("`getAcl /prod/jobs`"), "{message}");
        // The shell refuses a path that ends with a slash, but for the root.
        let message = missing_permission(&config.clone().root("/").unwrap());
        assert!(message.contains("in /prod ") && message.contains("`getAcl /prod`"), "{message}");
        let message = missing_permission(&ZkConfig::new(["h"]).unwrap().root("/").unwrap());
        assert!(message.contains("in / ") && message.contains("`getAcl /`"), "{message}");
    }

    /// A wrong password is refused by SASL; by the scheme digest it is another identity.
    #[test]
    fn what_may_be_wrong_depends_on_the_login() {
        let config = ZkConfig::new(["h"]).unwrap();
        let with = |login| config.clone().user("app", "secret", login);
        for (config, not_permitted, refused) in [
            (config.clone(), "without a login:", "configure a user and a password"),
            (
                with(Login::Digest),
                "as user \"app\" (if the password is wrong, that is another identity)",
                "user \"app\" by the scheme digest; if they require SASL, use login=sasl",
            ),
            (
                with(Login::SaslDigestMd5),
                "as user \"app\" (check the user and the password, too)",
                "the SASL login of user \"app\": check the user and the password",
            ),
        ] {
            for (message, expected) in
                [(missing_permission(&config), not_permitted), (refused_login(&config), refused)]
            {
                assert!(message.contains(expected) && !message.contains("secret"), "{message}");
            }
        }
    }
}
