//! Failed requests: what is known of their effect, and the one table from the client crate's errors to ours.

use std::borrow::Cow;

use lockkit_core::{Error, ErrorKind};
use redis::{RedisError, ServerErrorKind};

use crate::tls;

/// What a failed request may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it never left this process.
    NotSent,
    /// It may have been executed, or may still be.
    Unknown,
    /// Nothing: the server cannot serve it now.
    Busy,
    /// Nothing: the keys lie on two servers of a cluster for the moment.
    Split,
    /// Nothing: the server does not have the script (any more).
    ScriptUnknown,
    /// Nothing: another node of the cluster has the keys.
    Elsewhere,
    /// Nothing: the server will not do it.
    Refused,
}

/// What a failure says about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Nothing,
    /// It is broken, or the server at its other end may not write.
    Connection,
    /// Those to all nodes of a cluster.
    Cluster,
}

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) effect: Effect,
    kind: ErrorKind,
    pub(crate) ends: Ends,
    message: Cow<'static, str>,
}

impl Fault {
    pub(crate) fn new(effect: Effect, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { effect, kind, ends: Ends::Nothing, message: message.into() }
    }

    /// No reply within the time that a request has: the connection may be a black hole.
    pub(crate) fn no_reply() -> Self {
        Self {
            ends: Ends::Connection,
            ..Self::new(Effect::Unknown, ErrorKind::Unavailable, "Redis did not answer in time")
        }
    }

    /// The session is over.
    pub(crate) fn session_over() -> Self {
        Self::new(Effect::NotSent, ErrorKind::Closed, "the session is over")
    }

    /// An answer that no script of ours gives.
    pub(crate) fn nonsense(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Effect::Refused, ErrorKind::Unexpected, what)
    }

    /// The same where no other node is ever asked.
    #[must_use]
    pub(crate) fn without_cluster(self) -> Self {
        match self.effect {
            Effect::Elsewhere => {
                let message = "this server is part of a cluster: use redis+cluster://";
                Self::new(Effect::Refused, ErrorKind::InvalidConfig, message)
            }
            _ => self,
        }
    }

    /// This failure came before anything was asked for. A server that does not let us in will not do so later either.
    #[must_use]
    pub(crate) fn before_sending(self) -> Self {
        match self.effect {
            Effect::Refused => self,
            _ => Self { effect: Effect::NotSent, ..self },
        }
    }

    /// Whether the same request may succeed later; otherwise another try would end like this one.
    pub(crate) fn may_pass(&self) -> bool {
        self.effect != Effect::Refused && self.kind != ErrorKind::Closed
    }

    /// Whether the request may have been executed, or may still be.
    pub(crate) fn leaves_doubt(&self) -> bool {
        self.effect == Effect::Unknown
    }

    /// Whether a script may have ended by it: what the script had done before that stays done.
    pub(crate) fn may_be_of_a_script(&self) -> bool {
        self.effect == Effect::Refused && matches!(self.kind, ErrorKind::Unexpected | ErrorKind::Denied)
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error that a user sees.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        Error::new(self.kind, operation).with_message(self.message)
    }
}

/// The table.
impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        use redis::ErrorKind as Client;
        let message = text(&error);
        let (effect, kind) = match error.kind() {
            Client::Server(_) | Client::Extension => return Self::from_server(code(&error), message),
            Client::AuthenticationFailed => (Effect::Refused, ErrorKind::Denied),
            Client::InvalidClientConfig => (Effect::Refused, ErrorKind::InvalidConfig),
            Client::RESP3NotSupported => (Effect::Refused, ErrorKind::Unsupported),
            Client::ClusterConnectionNotFound => {
                let ends = Ends::Cluster;
                return Self { ends, ..Self::new(Effect::Unknown, ErrorKind::Unavailable, message) };
            }
            Client::UnexpectedReturnType => (Effect::Refused, ErrorKind::Unexpected),
            _ if tls::is_refusal(&error) => (Effect::Refused, ErrorKind::Denied),
            Client::Io if error.is_connection_refusal() => (Effect::NotSent, ErrorKind::Unavailable),
            _ => (Effect::Unknown, ErrorKind::Unavailable),
        };
        let ends = if effect == Effect::Refused { Ends::Nothing } else { Ends::Connection };
        Self { ends, ..Self::new(effect, kind, message) }
    }
}

impl Fault {
    /// By the first word of the server's error.
    fn from_server(code: &str, message: String) -> Self {
        let (effect, kind) = match code {
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "OOM" | "MISCONF" | "NOREPLICAS"
            | "READONLY" => (Effect::Busy, ErrorKind::Unavailable),
            "TRYAGAIN" => (Effect::Split, ErrorKind::Unavailable),
            "NOPERM" | "NOAUTH" | "WRONGPASS" | "DENIED" => (Effect::Refused, ErrorKind::Denied),
            "NOSCRIPT" => (Effect::ScriptUnknown, ErrorKind::Unavailable),
            "MOVED" | "ASK" => (Effect::Elsewhere, ErrorKind::Unavailable),
            _ => (Effect::Refused, ErrorKind::Unexpected),
        };
        let is_of_no_use = matches!(code, "READONLY" | "MASTERDOWN" | "NOAUTH");
        let ends = if is_of_no_use { Ends::Connection } else { Ends::Nothing };
        Self { ends, ..Self::new(effect, kind, message) }
    }
}

/// What a script's user lacks the rights for is told by version 7 without the word that others tell it by.
const SCRIPT_DENIED: &str = "ser executing the script can't";

/// The first word of the server's error. What a command inside a script was refused for is told by servers before
/// version 7 in the middle of the text only.
fn code(error: &RedisError) -> &str {
    let detail = error.detail().unwrap_or_default();
    let within = detail.split(" -").skip(1).find_map(|rest| {
        let word = rest.split(' ').next()?;
        (word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())).then_some(word)
    });
    match error.code() {
        Some("ERR") | None if detail.contains(SCRIPT_DENIED) => "NOPERM",
        Some("ERR") | None => within.or(error.code()).unwrap_or_default(),
        Some(code) => code,
    }
}

/// What the server or the operating system said, in one line.
fn text(error: &RedisError) -> String {
    let code = match error.kind() {
        redis::ErrorKind::Server(ServerErrorKind::ResponseError) => None,
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => error.code(),
        _ => None,
    };
    match (code, error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (None, Some(detail)) if error.category().is_empty() => detail.to_owned(),
        (_, Some(detail)) => format!("{}: {detail}", error.category()),
        (_, None) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(code: &str, detail: &str) -> Fault {
        Fault::from(redis::make_extension_error(code.to_owned(), Some(detail.to_owned())))
    }

    #[test]
    fn the_table() {
        use Effect::{Busy, Elsewhere, Refused, Split};
        use ErrorKind::{Denied, Unavailable, Unexpected};
        for (code, detail, expected) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'.", (Busy, Unavailable)),
            ("LOADING", "Redis is loading the dataset in memory", (Busy, Unavailable)),
            ("MISCONF", "Redis is configured to save RDB snapshots", (Busy, Unavailable)),
            ("NOREPLICAS", "Not enough good replicas to write.", (Busy, Unavailable)),
            ("BUSY", "Redis is busy running a script.", (Busy, Unavailable)),
            ("WRONGPASS", "invalid username-password pair", (Refused, Denied)),
            ("NOAUTH", "Authentication required.", (Refused, Denied)),
            ("WRONGTYPE", "Operation against a key", (Refused, Unexpected)),
            ("MOVED", "3999 127.0.0.1:6381", (Elsewhere, Unavailable)),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot", (Split, Unavailable)),
            ("ERR", "Error running script (call to f_1): -READONLY You can't write", (Busy, Unavailable)),
            ("ERR", "Error running script: @user_script: 12: -OOM command not allowed", (Busy, Unavailable)),
            ("ERR", "The user executing the script can't run this command", (Refused, Denied)),
            ("ERR", "wrong number of arguments", (Refused, Unexpected)),
        ] {
            let fault = fault(code, detail);
            assert_eq!((fault.effect, fault.kind), expected, "{code} {detail}");
        }
        assert_eq!(fault("ERR", "x -READONLY You can't write").ends, Ends::Connection);
        assert_eq!(fault("OOM", "").ends, Ends::Nothing);
    }

    #[test]
    fn an_io_error_leaves_doubt_unless_nobody_was_there() {
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(Fault::from(broken).leaves_doubt());
        let refused = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        assert_eq!(Fault::from(refused).effect, Effect::NotSent);
    }
}
