//! Failed requests: what is known of their effect, and the one table from the client crate's errors to ours.

use std::borrow::Cow;

use lockkit_core::{Error, ErrorKind};
use zookeeper_client::{Error as Client, MultiWriteError};

/// What a failed request may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It may have been executed, or may still be.
    Unknown,
    /// Nothing: it was not sent, or the server cannot serve it now.
    Busy,
    /// Nothing: the server will not do it.
    Refused,
    /// Nothing: the node, or the one above it, is not there.
    Missing,
    /// Nothing: the node is there already.
    Exists,
    /// Its reply is not awaited, or was that the session is over: what it did ends with the session.
    SessionOver,
}

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) effect: Effect,
    kind: ErrorKind,
    message: Cow<'static, str>,
}

impl Fault {
    pub(crate) fn new(effect: Effect, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { effect, kind, message: message.into() }
    }

    /// No reply within the time that a request has.
    pub(crate) fn no_reply() -> Self {
        Self::new(Effect::Unknown, ErrorKind::Unavailable, "ZooKeeper did not answer in time")
    }

    /// Not sent, because there is no connection.
    pub(crate) fn not_connected() -> Self {
        Self::new(Effect::Busy, ErrorKind::Unavailable, "not connected to ZooKeeper")
    }

    /// The session is over.
    pub(crate) fn session_over() -> Self {
        Self::new(Effect::SessionOver, ErrorKind::Closed, "the session is over")
    }

    /// Something in the store that no client of this library would write.
    pub(crate) fn unexpected(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Effect::Refused, ErrorKind::Unexpected, what)
    }

    /// A configuration that no retry will mend.
    pub(crate) fn invalid_config(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Effect::Refused, ErrorKind::InvalidConfig, what)
    }

    /// What this build cannot do.
    #[cfg(not(all(feature = "sasl", feature = "tls")))]
    pub(crate) fn unsupported(what: &'static str) -> Self {
        Self::new(Effect::Refused, ErrorKind::Unsupported, what)
    }

    /// Whether the same request may succeed later; otherwise another try would end like this one.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.effect, Effect::Unknown | Effect::Busy)
    }

    /// Whether another session may do better; a login that is refused will be refused again.
    pub(crate) fn ended_with_the_session(&self) -> bool {
        self.effect == Effect::SessionOver && !self.is_denied()
    }

    /// Whether the server cannot do that.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.kind == ErrorKind::Unsupported
    }

    /// Whether the server refuses for want of permission.
    pub(crate) fn is_denied(&self) -> bool {
        self.kind == ErrorKind::Denied
    }

    /// The error that a user sees.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        Error::new(self.kind, operation).with_message(self.message)
    }
}

/// The table.
impl From<Client> for Fault {
    fn from(error: Client) -> Self {
        use ErrorKind::{Closed, Denied, InvalidConfig, Unavailable, Unexpected, Unsupported};
        let (effect, kind) = match &error {
            // A request that was under way when its connection ended fails with whatever ended it: an error of the
            // operating system and silence come as `Custom`, only an orderly end as `ConnectionLoss`.
            Client::ConnectionLoss | Client::Custom(_) | Client::Timeout => (Effect::Unknown, Unavailable),
            Client::NoHosts => {
                let what = "none of the servers can be reached, or none has a quorum";
                return Self::new(Effect::Busy, Unavailable, what);
            }
            Client::Throttled | Client::SessionMoved | Client::NotReadOnly => (Effect::Busy, Unavailable),
            Client::NoNode => (Effect::Missing, Unexpected),
            Client::NodeExists => (Effect::Exists, Unexpected),
            Client::NoAuth => (Effect::Refused, Denied),
            Client::AuthFailed => (Effect::SessionOver, Denied),
            Client::SessionExpired => (Effect::SessionOver, Unavailable),
            Client::ClientClosed => (Effect::SessionOver, Closed),
            Client::InvalidAcl => {
                let what = "the server takes no such ACL (one with \"auth\" needs a login)";
                return Self::new(Effect::Refused, InvalidConfig, what);
            }
            Client::BadArguments(_) => (Effect::Refused, InvalidConfig),
            Client::QuotaExceeded => (Effect::Refused, Unavailable),
            Client::Unimplemented => {
                let what = "the server does not know this kind of request; ZooKeeper 3.6 and later do";
                return Self::new(Effect::Refused, Unsupported, what);
            }
            Client::NoChildrenForEphemerals => {
                return Self::unexpected("an ephemeral node stands where the queue should be");
            }
            _ => (Effect::Refused, Unexpected),
        };
        Self::new(effect, kind, error.to_string())
    }
}

/// The first check that failed in a transaction of nothing but checks; nothing is known of the others then.
pub(crate) fn failed_check<T>(answer: Result<T, MultiWriteError>) -> Result<Option<usize>, Client> {
    match answer {
        Ok(_) => Ok(None),
        Err(MultiWriteError::OperationFailed { index, source: Client::NoNode | Client::BadVersion }) => {
            Ok(Some(index))
        }
        Err(MultiWriteError::OperationFailed { source, .. } | MultiWriteError::RequestFailed { source }) => {
            Err(source)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use Effect::{Busy, Exists, Missing, Refused, SessionOver, Unknown};
        use ErrorKind::{Closed, Denied, InvalidConfig, Unavailable, Unexpected, Unsupported};
        for (error, expected) in [
            (Client::ConnectionLoss, (Unknown, Unavailable)),
            (Client::Timeout, (Unknown, Unavailable)),
            (Client::NoHosts, (Busy, Unavailable)),
            (Client::Throttled, (Busy, Unavailable)),
            (Client::SessionMoved, (Busy, Unavailable)),
            (Client::NoNode, (Missing, Unexpected)),
            (Client::NodeExists, (Exists, Unexpected)),
            (Client::NoAuth, (Refused, Denied)),
            (Client::AuthFailed, (SessionOver, Denied)),
            (Client::SessionExpired, (SessionOver, Unavailable)),
            (Client::ClientClosed, (SessionOver, Closed)),
            (Client::InvalidAcl, (Refused, InvalidConfig)),
            (Client::QuotaExceeded, (Refused, Unavailable)),
            (Client::Unimplemented, (Refused, Unsupported)),
            (Client::NoChildrenForEphemerals, (Refused, Unexpected)),
            (Client::Unimplemented, (Refused, Unsupported)),
            (Client::MarshallingError, (Refused, Unexpected)),
        ] {
            let fault = Fault::from(error.clone());
            assert_eq!((fault.effect, fault.kind), expected, "{error}");
        }
    }
}
