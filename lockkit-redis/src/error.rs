//! Failed requests: their possible effect, and the table from the client crate's errors to [`Error`].

use std::{borrow::Cow, fmt};

use lockkit_core::{Error, ErrorKind};
use redis::{RedisError, ServerErrorKind};

use crate::tls;

/// The possible effect of a failed request.
///
/// On a cluster, the client crate may have sent several copies, and this is the effect of the last one: see
/// [`may_hide_an_earlier_copy`](RequestError::may_hide_an_earlier_copy).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it never left this process.
    NotSent,
    /// Unknown: it may have been executed, or may still be.
    Unknown,
    /// Nothing: the server cannot serve it now.
    Busy,
    /// Nothing: the keys are on two servers of a cluster for the moment.
    Split,
    /// Nothing: the server does not have the script (any more).
    ScriptUnknown,
    /// Nothing: another node of the cluster has the keys.
    Elsewhere,
    /// Nothing: the server refused it for good.
    Refused,
}

/// Which connections a failure shows to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breaks {
    Nothing,
    /// This one: it is broken, or its server may not write.
    Connection,
    /// Those to all nodes of a cluster.
    Cluster,
}

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct RequestError {
    pub(crate) effect: Effect,
    kind: ErrorKind,
    pub(crate) breaks: Breaks,
    message: Cow<'static, str>,
}

impl RequestError {
    pub(crate) fn new(effect: Effect, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { effect, kind, breaks: Breaks::Nothing, message: message.into() }
    }

    /// Returns the fault that no reply came within the time limit: the connection may be a black hole.
    pub(crate) fn no_reply() -> Self {
        Self {
            breaks: Breaks::Connection,
            ..Self::new(Effect::Unknown, ErrorKind::Unavailable, "Redis did not answer in time")
        }
    }

    /// Returns the fault that the connection has ended before the reply.
    pub(crate) fn connection_ended() -> Self {
        let message = "the connection to Redis ended before the answer";
        Self { breaks: Breaks::Connection, ..Self::new(Effect::Unknown, ErrorKind::Unavailable, message) }
    }

    /// Returns the fault that the server is no longer a master.
    pub(crate) fn demoted() -> Self {
        let message = "the server is no longer a master";
        Self { breaks: Breaks::Connection, ..Self::new(Effect::Busy, ErrorKind::Unavailable, message) }
    }

    /// Returns the fault that the session is closed.
    pub(crate) fn session_closed() -> Self {
        Self::new(Effect::NotSent, ErrorKind::Closed, "the session is over")
    }

    /// Returns the fault that an answer has an unexpected form.
    pub(crate) fn unexpected(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Effect::Refused, ErrorKind::Unexpected, what)
    }

    /// Returns the same fault, of a server that is not used as a node of a cluster.
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

    /// Returns the same fault, of the server at this address.
    #[must_use]
    pub(crate) fn at(self, server: impl fmt::Display) -> Self {
        Self { message: format!("{server}: {}", self.message).into(), ..self }
    }

    /// Returns the same fault, with what to check.
    #[must_use]
    pub(crate) fn with_question(self, question: &str) -> Self {
        Self { message: format!("{} ({question})", self.message).into(), ..self }
    }

    /// Returns the faults of several servers as one. It is a failure that no retry can fix only if all of them are: a
    /// client that waits for the store must not give up because one of its servers refuses it.
    pub(crate) fn of_servers(faults: Vec<Self>) -> Option<Self> {
        let messages: Vec<&str> = faults.iter().map(Self::message).collect();
        let message = messages.join("; ");
        let decisive = faults.iter().position(Self::is_transient).unwrap_or_default();
        Some(Self { message: message.into(), ..faults.into_iter().nth(decisive)? })
    }

    /// Returns the same fault, which says of a refused login that it was for a Sentinel: Sentinels have users of their
    /// own.
    #[must_use]
    pub(crate) fn of_sentinels(self) -> Self {
        if self.kind != ErrorKind::Denied {
            return self;
        }
        let message = format!(
            "a Sentinel refuses the login (sentinel_user, and sentinel_password or sentinel_password_file): {}",
            // What a server's refusal says is about another login.
            self.message.replace(NOAUTH, "NOAUTH it asks for a password")
        );
        Self::new(Effect::Refused, ErrorKind::Denied, message)
    }

    /// Returns the same fault, before the request was sent. A refusal stays one: the server would refuse the next
    /// login, too.
    #[must_use]
    pub(crate) fn before_sending(self) -> Self {
        match self.effect {
            Effect::Refused => self,
            _ => Self { effect: Effect::NotSent, ..self },
        }
    }

    /// Returns whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        self.effect != Effect::Refused && self.kind != ErrorKind::Closed
    }

    /// Returns whether the request may have been executed, or may still be.
    pub(crate) fn may_have_executed(&self) -> bool {
        self.effect == Effect::Unknown
    }

    /// Returns the same fault, of a request to a cluster. The client crate sends up to five copies, and reports what
    /// became of the last one: that its node could not be reached does not mean that no copy left this process.
    #[must_use]
    pub(crate) fn of_last_copy(self) -> Self {
        match self.effect {
            Effect::NotSent => Self { effect: Effect::Busy, ..self },
            _ => self,
        }
    }

    /// Returns whether an earlier copy of a request to a cluster may have been executed, see
    /// [`of_last_copy`](Self::of_last_copy). While a slot moves, its owner has most probably answered all of them so. It
    /// would refuse a withdrawal, too, until the move is over.
    pub(crate) fn may_hide_an_earlier_copy(&self) -> bool {
        !matches!(self.effect, Effect::NotSent | Effect::Split)
    }

    /// Returns whether a script may have failed with it; what the script had written before stays.
    pub(crate) fn may_be_from_script(&self) -> bool {
        self.effect == Effect::Refused && matches!(self.kind, ErrorKind::Unexpected | ErrorKind::Denied)
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Converts into the error for the user.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        Error::new(self.kind, operation).with_message(self.message)
    }
}

/// The table for errors of the client crate.
impl From<RedisError> for RequestError {
    fn from(error: RedisError) -> Self {
        use redis::ErrorKind as Client;
        let message = text(&error);
        let (effect, kind) = match error.kind() {
            Client::Server(_) | Client::Extension => return Self::from_server(code(&error), message),
            Client::AuthenticationFailed => (Effect::Refused, ErrorKind::Denied),
            Client::InvalidClientConfig => (Effect::Refused, ErrorKind::InvalidConfig),
            Client::RESP3NotSupported => (Effect::Refused, ErrorKind::Unsupported),
            Client::ClusterConnectionNotFound => {
                let breaks = Breaks::Cluster;
                return Self { breaks, ..Self::new(Effect::Unknown, ErrorKind::Unavailable, message) };
            }
            Client::UnexpectedReturnType => (Effect::Refused, ErrorKind::Unexpected),
            _ if tls::is_refusal(&error) => (Effect::Refused, ErrorKind::Denied),
            Client::Io if error.is_connection_refusal() => (Effect::NotSent, ErrorKind::Unavailable),
            _ => (Effect::Unknown, ErrorKind::Unavailable),
        };
        let breaks = if effect == Effect::Refused { Breaks::Nothing } else { Breaks::Connection };
        Self { breaks, ..Self::new(effect, kind, message) }
    }
}

impl RequestError {
    /// Maps errors of the server, by their first word.
    fn from_server(code: &str, message: String) -> Self {
        if let Some(advice) = misdirected(code, &message) {
            return Self::new(Effect::Refused, ErrorKind::InvalidConfig, format!("{advice} ({message})"));
        }
        let message = if code == "NOAUTH" { NOAUTH.to_owned() } else { message };
        let (effect, kind) = match code {
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "OOM" | "MISCONF" | "NOREPLICAS"
            | "READONLY" | MAX_CLIENTS => (Effect::Busy, ErrorKind::Unavailable),
            // A WAIT was under way when the master was demoted. The script before it was executed.
            "UNBLOCKED" => (Effect::Unknown, ErrorKind::Unavailable),
            "TRYAGAIN" => (Effect::Split, ErrorKind::Unavailable),
            "NOPERM" | "NOAUTH" | "WRONGPASS" | "DENIED" => (Effect::Refused, ErrorKind::Denied),
            "NOSCRIPT" => (Effect::ScriptUnknown, ErrorKind::Unavailable),
            "MOVED" | "ASK" => (Effect::Elsewhere, ErrorKind::Unavailable),
            _ => (Effect::Refused, ErrorKind::Unexpected),
        };
        let is_broken = matches!(code, "READONLY" | "MASTERDOWN" | "NOAUTH" | "UNBLOCKED");
        let breaks = if is_broken { Breaks::Connection } else { Breaks::Nothing };
        Self { breaks, ..Self::new(effect, kind, message) }
    }
}

/// Instead of the server's text, which is about the protocol.
const NOAUTH: &str = "NOAUTH the server asks for a password: give it with its user in the URL (the user of a password \
                      alone is `default`), or name the user in the URL (redis://default@HOST) and give lockkit the \
                      password with LOCKKIT_PASSWORD";

/// Returns what to do where the error shows that the URL leads to another kind of server, or asks for what it has not.
fn misdirected(code: &str, message: &str) -> Option<&'static str> {
    let is_unknown = |command: &str| message.contains("unknown command") && message.contains(command);
    match code {
        "ERR" | "" if message.contains("accepted by Sentinel instances") => Some(IS_SENTINEL),
        "ERR" | "" if is_unknown("SENTINEL") => Some(
            "this server is no Sentinel: name the Sentinels (port 26379 unless configured), or use redis://",
        ),
        "ERR" | "" if is_unknown("CLUSTER") => {
            Some("this server is no node of a cluster: use redis://, or redis+sentinel:// for a Sentinel")
        }
        "ERR" | "" if message.contains("cluster support disabled") => {
            Some("this server is not part of a cluster: use redis://")
        }
        "ERR" | "" if message.contains("SELECT is not allowed in cluster mode") => {
            Some("this server is part of a cluster, which has no databases: use redis+cluster://")
        }
        "ERR" | "" if message.contains("DB index is out of range") => {
            Some("the server has no database of this number: `databases` in its configuration is their count")
        }
        _ => None,
    }
}

/// What to do with a Sentinel in the place of a server.
pub(crate) const IS_SENTINEL: &str = "this is a Sentinel: use redis+sentinel://HOST:PORT/MASTER";

/// Parts of the error for a script whose user lacks a right, which has no NOPERM: in version 7.0, and in later ones.
const SCRIPT_DENIED: [&str; 2] = ["ser executing the script can't", "ACL failure in script"];

/// The beginning of the error of WAIT at a server that is not a master any more. If the script before it has written
/// nothing, no READONLY comes first.
const WAIT_AT_A_REPLICA: &str = "WAIT cannot be used with replica";

/// In the place of a first word, for an error that has none of its own.
const MAX_CLIENTS: &str = "MAXCLIENTS";

/// The beginning of the error of a server, or of a node of a cluster, that takes no more connections (`maxclients`).
const MAX_CLIENTS_REACHED: &str = "max number of clients";

/// Returns the first word of the server's error. Before version 7, the error of a command inside a script has its word
/// only in the middle of the text.
fn code(error: &RedisError) -> &str {
    let detail = error.detail().unwrap_or_default();
    let within = detail.split(" -").skip(1).find_map(|rest| {
        let word = rest.split(' ').next()?;
        (word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())).then_some(word)
    });
    match error.code() {
        Some("ERR") | None if SCRIPT_DENIED.iter().any(|part| detail.contains(part)) => "NOPERM",
        Some("ERR") | None if detail.starts_with(WAIT_AT_A_REPLICA) => "UNBLOCKED",
        Some("ERR") | None if detail.starts_with(MAX_CLIENTS_REACHED) => MAX_CLIENTS,
        Some("ERR") | None => within.or(error.code()).unwrap_or_default(),
        Some(code) => code,
    }
}

/// What begins the server's quotation of an unknown command: of HELLO, the password of the login.
const QUOTED: &str = ", with args beginning with";

/// Returns the message of the server or the operating system, in one line, without what was sent.
fn text(error: &RedisError) -> String {
    let mut text = full_text(error);
    if let Some(end) = text.find(QUOTED) {
        text.truncate(end);
    }
    text
}

fn full_text(error: &RedisError) -> String {
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

    fn fault(code: &str, detail: &str) -> RequestError {
        RequestError::from(redis::make_extension_error(code.to_owned(), Some(detail.to_owned())))
    }

    #[test]
    fn server_errors_map_to_effect_and_kind() {
        use Effect::{Busy, Elsewhere, Refused, Split};
        use ErrorKind::{Denied, Unavailable, Unexpected};
        for (code, detail, expected) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'.", (Busy, Unavailable)),
            ("LOADING", "Redis is loading the dataset in memory", (Busy, Unavailable)),
            ("MISCONF", "Redis is configured to save RDB snapshots", (Busy, Unavailable)),
            ("NOREPLICAS", "Not enough good replicas to write.", (Busy, Unavailable)),
            ("MASTERDOWN", "Link with MASTER is down and replica-serve-stale-data", (Busy, Unavailable)),
            ("CLUSTERDOWN", "The cluster is down", (Busy, Unavailable)),
            ("BUSY", "Redis is busy running a script.", (Busy, Unavailable)),
            ("ERR", "max number of clients reached", (Busy, Unavailable)),
            ("ERR", "max number of clients + cluster connections reached", (Busy, Unavailable)),
            ("UNBLOCKED", "force unblock from blocking operation", (Effect::Unknown, Unavailable)),
            ("WRONGPASS", "invalid username-password pair", (Refused, Denied)),
            ("NOAUTH", "Authentication required.", (Refused, Denied)),
            ("DENIED", "Redis is running in protected mode", (Refused, Denied)),
            ("NOPERM", "User me has no permissions to run the 'eval' command", (Refused, Denied)),
            ("WRONGTYPE", "Operation against a key", (Refused, Unexpected)),
            ("MOVED", "3999 127.0.0.1:6381", (Elsewhere, Unavailable)),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot", (Split, Unavailable)),
            ("ERR", "Error running script (call to f_1): -READONLY You can't write", (Busy, Unavailable)),
            ("ERR", "Error running script: @user_script: 12: -OOM command not allowed", (Busy, Unavailable)),
            ("ERR", "The user executing the script can't run this command", (Refused, Denied)),
            ("ERR", "ACL failure in script: User me has no permissions", (Refused, Denied)),
            ("ERR", "WAIT cannot be used with replica instances.", (Effect::Unknown, Unavailable)),
            ("ERR", "wrong number of arguments", (Refused, Unexpected)),
        ] {
            let fault = fault(code, detail);
            assert_eq!((fault.effect, fault.kind), expected, "{code} {detail}");
        }
        assert_eq!(fault("ERR", "x -READONLY You can't write").breaks, Breaks::Connection);
        assert_eq!(fault("MASTERDOWN", "Link with MASTER is down").breaks, Breaks::Connection);
        assert_eq!(fault("ERR", "WAIT cannot be used with replica instances.").breaks, Breaks::Connection);
        assert_eq!(fault("OOM", "").breaks, Breaks::Nothing);
        // The next connection logs in again.
        assert_eq!(fault("NOAUTH", "Authentication required.").breaks, Breaks::Connection);
        let no_node = RedisError::from((redis::ErrorKind::ClusterConnectionNotFound, "No connections found"));
        assert_eq!(RequestError::from(no_node).breaks, Breaks::Cluster);
    }

    #[test]
    fn io_error_leaves_doubt_unless_the_connection_was_refused() {
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(RequestError::from(broken).may_have_executed());
        let refused = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        let refused = RequestError::from(refused);
        // Another node of the cluster may have taken its place.
        assert_eq!((refused.effect, refused.breaks), (Effect::NotSent, Breaks::Connection));
    }

    /// They are names of locks, and what their holders wrote.
    #[test]
    fn arguments_that_a_server_quotes_are_not_shown() {
        let fault = fault("ERR", "unknown command `HSTRLEN`, with args beginning with: `hunter2` ");
        let message = fault.message();
        assert!(message.contains("HSTRLEN") && !message.contains("hunter2"), "{message}");
    }
}
