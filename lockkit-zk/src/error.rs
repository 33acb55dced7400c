//! Failed requests: their possible effect, and the one table from the client crate's errors to ours.

use std::borrow::Cow;

use lockkit_core::{
    Error, ErrorKind,
    support::{NoReply, SessionOver},
};
use zookeeper_client::{Error as Client, MultiWriteError};

/// What a failed request may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The request may have been executed, or may still be.
    Unknown,
    /// None: it was not sent, or the server cannot serve it now.
    Busy,
    /// None: the server refuses it.
    Refused,
    /// None: the node, or its parent, is missing.
    Missing,
    /// None: the node exists already.
    Exists,
    /// None: the node's data have another version than expected.
    OtherVersion,
    /// The session is over, and so are the effects of the request.
    SessionOver,
}

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct RequestError {
    pub(crate) effect: Effect,
    kind: ErrorKind,
    message: Cow<'static, str>,
}

impl RequestError {
    pub(crate) fn new(effect: Effect, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { effect, kind, message: message.into() }
    }

    /// Returns the error of a request without a reply within its time limit.
    pub(crate) fn no_reply() -> Self {
        Self::new(Effect::Unknown, ErrorKind::Unavailable, "ZooKeeper did not answer in time")
    }

    /// Returns the error of a request that was not sent, because there is no connection.
    pub(crate) fn not_connected() -> Self {
        Self::new(Effect::Busy, ErrorKind::Unavailable, "not connected to ZooKeeper")
    }

    /// Returns the error for a store that holds something that no client of this library writes.
    pub(crate) fn unexpected(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Effect::Refused, ErrorKind::Unexpected, what)
    }

    /// Returns the error for a wrong configuration: a retry cannot succeed.
    pub(crate) fn invalid_config(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Effect::Refused, ErrorKind::InvalidConfig, what)
    }

    /// Returns the error for what this build does not support.
    #[cfg(not(all(feature = "sasl", feature = "tls")))]
    pub(crate) fn unsupported(what: &'static str) -> Self {
        Self::new(Effect::Refused, ErrorKind::Unsupported, what)
    }

    /// Returns whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.effect, Effect::Unknown | Effect::Busy)
    }

    /// Returns whether the claim may succeed in another session; a refused login is refused again.
    pub(crate) fn may_succeed_in_another_session(&self) -> bool {
        self.effect == Effect::SessionOver && !self.is_denied()
    }

    /// Returns whether the server does not support the request.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.kind == ErrorKind::Unsupported
    }

    /// Returns whether a permission is missing.
    pub(crate) fn is_denied(&self) -> bool {
        self.kind == ErrorKind::Denied
    }

    /// Returns the error of a call that has a session of its own: the end of that session is not the close of a client.
    pub(crate) fn of_own_session(self) -> Self {
        match self.effect {
            Effect::SessionOver if self.kind == ErrorKind::Closed => Self::no_reply(),
            _ => self,
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Replaces the message.
    pub(crate) fn with_message(self, message: impl Into<Cow<'static, str>>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// Returns the error that the user sees.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        Error::new(self.kind, operation).with_message(self.message)
    }
}

impl From<SessionOver> for RequestError {
    fn from(_: SessionOver) -> Self {
        Self::new(Effect::SessionOver, ErrorKind::Closed, "the session is over")
    }
}

/// There is no reply within the time limit of the request.
impl From<NoReply> for RequestError {
    fn from(_: NoReply) -> Self {
        Self::no_reply()
    }
}

/// The table of the client crate's errors.
impl From<Client> for RequestError {
    fn from(error: Client) -> Self {
        use ErrorKind::{Closed, Denied, InvalidConfig, Unavailable, Unexpected, Unsupported};
        let (effect, kind) = match &error {
            // A request fails with whatever ended its connection: errors of the operating system and silence arrive as
            // `Custom`, only an orderly end as `ConnectionLoss`.
            Client::ConnectionLoss | Client::Custom(_) | Client::Timeout => (Effect::Unknown, Unavailable),
            // An answer that cannot be read ends it, too, whichever request it is to. This one may have been executed.
            Client::UnmarshalError { .. } | Client::UnexpectedError(_) => (Effect::Unknown, Unavailable),
            Client::NoHosts => {
                let what = "no server can be reached, or none has a quorum";
                return Self::new(Effect::Busy, Unavailable, what);
            }
            Client::Throttled | Client::SessionMoved | Client::NotReadOnly => (Effect::Busy, Unavailable),
            Client::NoNode => (Effect::Missing, Unexpected),
            Client::NodeExists => (Effect::Exists, Unexpected),
            Client::BadVersion => (Effect::OtherVersion, Unexpected),
            Client::NoAuth => {
                let what = "the ACL of a node does not permit it (see `getAcl` in ZooKeeper's shell)";
                return Self::new(Effect::Refused, Denied, what);
            }
            Client::AuthFailed => (Effect::SessionOver, Denied),
            Client::SessionExpired => (Effect::SessionOver, Unavailable),
            Client::ClientClosed => (Effect::SessionOver, Closed),
            Client::InvalidAcl => {
                let what = "the server refuses the ACL (an entry with \"auth\" needs a login)";
                return Self::new(Effect::Refused, InvalidConfig, what);
            }
            Client::BadArguments(_) => (Effect::Refused, InvalidConfig),
            Client::QuotaExceeded => (Effect::Refused, Unavailable),
            Client::Unimplemented => {
                let what = "the server does not support this request; use ZooKeeper 3.6 or later";
                return Self::new(Effect::Refused, Unsupported, what);
            }
            Client::NoChildrenForEphemerals => {
                let what = "an ephemeral node exists at the path of the queue; does another program use it as a lock?";
                return Self::unexpected(what);
            }
            _ => (Effect::Refused, Unexpected),
        };
        Self::new(effect, kind, error.to_string())
    }
}

/// Returns the first operation of a transaction that failed, with its error; `None` if the transaction was executed.
pub(crate) fn failed_operation<T>(
    answer: Result<T, MultiWriteError>,
) -> Result<Option<(usize, Client)>, Client> {
    match answer {
        Ok(_) => Ok(None),
        Err(MultiWriteError::OperationFailed { index, source }) => Ok(Some((index, source))),
        Err(MultiWriteError::RequestFailed { source }) => Err(source),
    }
}

/// Returns the first check that failed in a transaction of checks only; the others are unknown then.
pub(crate) fn failed_check<T>(answer: Result<T, MultiWriteError>) -> Result<Option<usize>, Client> {
    match failed_operation(answer)? {
        None => Ok(None),
        Some((index, Client::NoNode | Client::BadVersion)) => Ok(Some(index)),
        Some((_, error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_login_is_not_tried_in_another_session() {
        for (error, expected) in [
            (Client::SessionExpired, true),
            (Client::ClientClosed, true),
            (Client::AuthFailed, false),
            (Client::ConnectionLoss, false),
        ] {
            let mapped = RequestError::from(error.clone());
            assert_eq!(mapped.may_succeed_in_another_session(), expected, "{error}");
        }
    }

    #[test]
    fn end_of_a_calls_own_session_is_not_the_close_of_a_client() {
        let own = |error: RequestError| error.of_own_session().kind;
        assert_eq!(own(SessionOver.into()), ErrorKind::Unavailable);
        assert_eq!(own(Client::AuthFailed.into()), ErrorKind::Denied);
        assert_eq!(own(Client::NoAuth.into()), ErrorKind::Denied);
    }

    #[test]
    fn client_errors_map_to_effect_and_kind() {
        use Effect::{Busy, Exists, Missing, OtherVersion, Refused, SessionOver, Unknown};
        use ErrorKind::{Closed, Denied, InvalidConfig, Unavailable, Unexpected, Unsupported};
        for (error, expected) in [
            (Client::ConnectionLoss, (Unknown, Unavailable)),
            (Client::Timeout, (Unknown, Unavailable)),
            (Client::UnmarshalError { entity: "reply", reason: &"too short" }, (Unknown, Unavailable)),
            (Client::UnexpectedError("reply to no request".to_owned()), (Unknown, Unavailable)),
            (Client::UnexpectedErrorCode(-1), (Refused, Unexpected)),
            (Client::NoHosts, (Busy, Unavailable)),
            (Client::Throttled, (Busy, Unavailable)),
            (Client::SessionMoved, (Busy, Unavailable)),
            (Client::NotReadOnly, (Busy, Unavailable)),
            (Client::NoNode, (Missing, Unexpected)),
            (Client::NodeExists, (Exists, Unexpected)),
            (Client::BadVersion, (OtherVersion, Unexpected)),
            (Client::NoAuth, (Refused, Denied)),
            (Client::AuthFailed, (SessionOver, Denied)),
            (Client::SessionExpired, (SessionOver, Unavailable)),
            (Client::ClientClosed, (SessionOver, Closed)),
            (Client::InvalidAcl, (Refused, InvalidConfig)),
            (Client::BadArguments(&"not a path"), (Refused, InvalidConfig)),
            (Client::QuotaExceeded, (Refused, Unavailable)),
            (Client::Unimplemented, (Refused, Unsupported)),
            (Client::NoChildrenForEphemerals, (Refused, Unexpected)),
            (Client::Unimplemented, (Refused, Unsupported)),
            (Client::MarshallingError, (Refused, Unexpected)),
        ] {
            let mapped = RequestError::from(error.clone());
            assert_eq!((mapped.effect, mapped.kind), expected, "{error}");
        }
    }
}
