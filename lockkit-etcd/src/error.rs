//! Failed requests: their possible effect, and the table that maps the client's errors to ours.

use std::{borrow::Cow, error::Error as StdError, sync::Arc};

use lockkit_core::{
    Error, ErrorKind,
    backend::tls::is_distrust,
    support::{NoReply, SessionOver},
};
use tonic::{Code, ConnectError};

use crate::client;

/// The texts of the errors of a handshake with a server that expects something else than TLS.
const NOT_TLS: [&str; 3] = ["tls handshake eof", "InvalidContentType", "Connection reset"];

/// The texts of a member that serves nobody: it has no leader (also while a read or a renewal waits for one), is a learner,
/// or does not know yet what the cluster can do.
const NOT_SERVING: [&str; 3] = ["no leader", "rpc not supported for learner", "not capable"];

/// The text of hyper's error for a request whose connection was closed before it was sent.
const CLOSED: &str = "connection closed";

const NO_REPLY: &str = "etcd did not answer in time";

/// The effect that a failed request may have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// None: it never left this process.
    NotSent,
    /// Unknown: it may have been executed, or may still be.
    Unknown,
    /// None: the server cannot serve it now.
    Busy,
    /// None: this member of the cluster serves nobody now, but another one may: it has no leader, or is a learner.
    NotServing,
    /// Unknown: the store is full. A request that reaches the limit of the store is executed and answered so; the server
    /// refuses all later ones. It is not executed later.
    Full,
    /// None: the server refuses it.
    Refused,
    /// None: the login must be renewed first.
    LoginStale,
    /// None: the client's lease has ended.
    LeaseGone,
    /// Unknown: it was not sent, or its reply was not awaited, because the session is over.
    SessionOver,
}

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct RequestError {
    pub(crate) effect: Effect,
    kind: ErrorKind,
    message: Cow<'static, str>,
    /// The endpoints that the request may have reached.
    at: Option<Arc<str>>,
}

impl RequestError {
    pub(crate) fn new(effect: Effect, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { effect, kind, message: message.into(), at: None }
    }

    /// Returns the error of a request without a reply within its time limit.
    pub(crate) fn no_reply() -> Self {
        Self::new(Effect::Unknown, ErrorKind::Unavailable, NO_REPLY)
    }

    /// Returns the error of a request that was not sent for lack of a connection. A lack of trust lasts until an
    /// operator acts, but another endpoint may be trusted.
    pub(crate) fn not_connected(error: &(dyn StdError + 'static)) -> Self {
        let kind = if causes(error).any(is_distrust) { ErrorKind::Denied } else { ErrorKind::Unavailable };
        Self::new(Effect::NotSent, kind, format!("cannot connect: {}", last_cause(error)))
    }

    /// Returns the error of a request whose lease has ended.
    pub(crate) fn lease_gone() -> Self {
        Self::new(Effect::LeaseGone, ErrorKind::Unavailable, "the client's lease has ended")
    }

    /// Returns the error of a request without an effect, because something else interferes.
    pub(crate) fn busy(what: &'static str) -> Self {
        Self::new(Effect::Busy, ErrorKind::Unavailable, what)
    }

    /// Returns the error for a reply or a state that etcd's interface does not allow.
    pub(crate) fn unexpected(what: &'static str) -> Self {
        Self::new(Effect::Refused, ErrorKind::Unexpected, what)
    }

    /// Returns whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self.effect {
            Effect::NotSent | Effect::Unknown | Effect::Busy | Effect::NotServing | Effect::LoginStale => {
                true
            }
            Effect::Full | Effect::Refused | Effect::LeaseGone | Effect::SessionOver => false,
        }
    }

    /// Returns whether the request had no effect because of the endpoint that it reached.
    pub(crate) fn is_endpoint_failure(&self) -> bool {
        matches!(self.effect, Effect::NotSent | Effect::NotServing)
    }

    /// Returns this failure of an endpoint, or the earlier one of another endpoint if only that one may pass.
    pub(crate) fn or_earlier_that_may_pass(self, earlier: Option<Self>) -> Self {
        earlier.filter(|earlier| earlier.may_pass() && !self.may_pass()).unwrap_or(self)
    }

    /// Returns whether a failure of an endpoint may pass by itself: a lack of trust lasts until an operator acts.
    pub(crate) fn may_pass(&self) -> bool {
        self.kind == ErrorKind::Unavailable
    }

    /// Returns whether the request may have been executed, or may still be.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.may_come_later() || self.effect == Effect::Full
    }

    /// Returns whether the request may still be executed.
    pub(crate) fn may_come_later(&self) -> bool {
        matches!(self.effect, Effect::Unknown | Effect::SessionOver)
    }

    /// Returns whether the server refuses what this request writes, or its lease has ended: less may still be written.
    pub(crate) fn asks_for_less(&self) -> bool {
        matches!(self.effect, Effect::Full | Effect::Refused | Effect::LeaseGone)
    }

    /// Returns whether a handshake failed as if the other side did not speak TLS.
    pub(crate) fn is_failed_handshake(&self) -> bool {
        NOT_TLS.iter().any(|text| self.message.contains(text))
    }

    /// Adds the endpoints that the request may have reached.
    pub(crate) fn at(self, endpoints: &Arc<str>) -> Self {
        Self { at: Some(Arc::clone(endpoints)), ..self }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Converts the fault to the error that a user sees.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        // As a text, not as the source: the `Debug` output of the client's errors contains whole requests.
        Error::new(self.kind, operation).with_message(match self.at {
            Some(at) if self.kind == ErrorKind::Unavailable => format!("{at}: {}", self.message).into(),
            _ => self.message,
        })
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

/// The table. Its texts are those of etcd, `api/v3rpc/rpctypes/error.go`.
impl From<client::Error> for RequestError {
    fn from(error: client::Error) -> Self {
        use client::Error as Client;
        match error {
            Client::Status(status) => Self::from(status),
            #[cfg(feature = "tls")]
            Client::Tls(error) => {
                Self::new(Effect::NotSent, ErrorKind::InvalidConfig, format!("TLS: {}", last_cause(&error)))
            }
            Client::InvalidEndpoint => {
                Self::new(Effect::NotSent, ErrorKind::InvalidConfig, "an endpoint is not HOST:PORT")
            }
            Client::InvalidToken => {
                Self::new(Effect::Refused, ErrorKind::Unexpected, "a login token that is no text")
            }
            Client::LeaseNotFound => Self::lease_gone(),
            Client::StreamEnded => Self::new(Effect::Unknown, ErrorKind::Unavailable, "the stream has ended"),
        }
    }
}

impl From<tonic::Status> for RequestError {
    fn from(status: tonic::Status) -> Self {
        let text = status.message().trim_start_matches("etcdserver: ").to_owned();
        let (effect, kind) = match status.code() {
            _ if is_connect_error(&status) || is_closed(&status) || causes(&status).any(is_distrust) => {
                return Self::not_connected(&status);
            }
            Code::NotFound if text == "requested lease not found" => return Self::lease_gone(),
            Code::Unauthenticated => (Effect::LoginStale, ErrorKind::Denied),
            Code::InvalidArgument if text == "revision of auth store is old" => {
                (Effect::LoginStale, ErrorKind::Unavailable)
            }
            Code::InvalidArgument if text == "user name is empty" => {
                return Self::new(
                    Effect::Refused,
                    ErrorKind::Denied,
                    "the server asks for a user and a password",
                );
            }
            Code::InvalidArgument if text.contains("authentication failed") || text.contains("user name") => {
                (Effect::Refused, ErrorKind::Denied)
            }
            Code::FailedPrecondition if text == "authentication is not enabled" => {
                return Self::new(
                    Effect::Refused,
                    ErrorKind::InvalidConfig,
                    "a user is configured, but authentication is not enabled at the server",
                );
            }
            Code::PermissionDenied => (Effect::Refused, ErrorKind::Denied),
            // No space for writes until an operator acts; deletes still work. etcd, `etcdserver/apply.go`: a transaction
            // that passes the limit while it is applied is executed all the same (`quotaApplierV3`).
            Code::ResourceExhausted if text.contains("space exceeded") => {
                (Effect::Full, ErrorKind::Unavailable)
            }
            // Returned before it is proposed. With other texts it may be a reset HTTP/2 stream (`ENHANCE_YOUR_CALM`), whose
            // request a proxy may have passed on.
            Code::ResourceExhausted if text == "too many requests" => (Effect::Busy, ErrorKind::Unavailable),
            // Returned before anything is proposed. The code differs between versions.
            Code::Unavailable | Code::FailedPrecondition if NOT_SERVING.contains(&&*text) => {
                (Effect::NotServing, ErrorKind::Unavailable)
            }
            Code::Unimplemented => {
                let message = format!("{text}; is this etcd?");
                return Self::new(Effect::Refused, ErrorKind::Unsupported, message);
            }
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::NotFound => {
                (Effect::Refused, ErrorKind::Unexpected)
            }
            // Leader changed, request timed out, connection broken: the proposal may be under way.
            _ => (Effect::Unknown, ErrorKind::Unavailable),
        };
        Self::new(effect, kind, text)
    }
}

/// Returns whether there was no connection to send on: the transport reports a `ConnectError` then.
fn is_connect_error(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|error| error.is::<ConnectError>())
}

/// Returns whether the connection closed before the request left the queue (hyper, `client/dispatch.rs`: `Envelope`).
fn is_closed(status: &tonic::Status) -> bool {
    status.code() == Code::Cancelled && causes(status).last().is_some_and(|cause| cause.to_string() == CLOSED)
}

/// Describes the last cause: "Connection refused" is more useful than "transport error".
fn last_cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    causes(error).last().unwrap_or(error)
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    fn fault(code: Code, text: &str) -> (Effect, ErrorKind) {
        let fault = RequestError::from(client::Error::Status(Status::new(code, text)));
        (fault.effect, fault.kind)
    }

    /// Hyper reports the same code for a stream that was reset, whose request may have been executed.
    #[test]
    fn request_on_a_closed_connection_was_not_sent() {
        for (cause, effect) in [(CLOSED, Effect::NotSent), ("stream reset", Effect::Unknown)] {
            let mut status = Status::cancelled("operation was canceled");
            status.set_source(Arc::new(std::io::Error::other(cause)));
            assert_eq!(RequestError::from(status).effect, effect, "{cause}");
        }
    }

    #[test]
    fn errors_are_classified() {
        use Effect::{Busy, Full, LeaseGone, LoginStale, NotServing, Refused, Unknown};
        use ErrorKind::{Denied, InvalidConfig, Unavailable, Unexpected, Unsupported};
        for (code, text, expected) in [
            (Code::NotFound, "etcdserver: requested lease not found", (LeaseGone, Unavailable)),
            (Code::Unavailable, "etcdserver: no leader", (NotServing, Unavailable)),
            (Code::Unavailable, "etcdserver: rpc not supported for learner", (NotServing, Unavailable)),
            (
                Code::FailedPrecondition,
                "etcdserver: rpc not supported for learner",
                (NotServing, Unavailable),
            ),
            (Code::Unavailable, "etcdserver: not capable", (NotServing, Unavailable)),
            (Code::FailedPrecondition, "etcdserver: not capable", (NotServing, Unavailable)),
            (Code::Unavailable, "etcdserver: request timed out", (Unknown, Unavailable)),
            (Code::Unavailable, "etcdserver: leader changed", (Unknown, Unavailable)),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                (Unknown, Unavailable),
            ),
            (Code::Cancelled, "Timeout expired", (Unknown, Unavailable)),
            (Code::Unknown, "h2 protocol error: error reading a body", (Unknown, Unavailable)),
            (Code::ResourceExhausted, "etcdserver: too many requests", (Busy, Unavailable)),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", (Full, Unavailable)),
            (Code::ResourceExhausted, "h2 protocol error: http2 error", (Unknown, Unavailable)),
            (Code::PermissionDenied, "etcdserver: permission denied", (Refused, Denied)),
            (Code::Unauthenticated, "etcdserver: invalid auth token", (LoginStale, Denied)),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", (LoginStale, Unavailable)),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                (Refused, Denied),
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty", (Refused, Denied)),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", (Refused, InvalidConfig)),
            (Code::InvalidArgument, "etcdserver: request is too large", (Refused, Unexpected)),
            (Code::Unimplemented, "unknown service etcdserverpb.KV", (Refused, Unsupported)),
        ] {
            assert_eq!(fault(code, text), expected, "{text}");
        }
    }

    /// Something else may listen there, or a proxy before it.
    #[test]
    fn error_of_a_server_without_the_service_asks_whether_it_is_etcd() {
        let fault = RequestError::from(Status::unimplemented("unknown service etcdserverpb.KV"));
        assert!(fault.message().ends_with("; is this etcd?"), "{}", fault.message());
    }
}
