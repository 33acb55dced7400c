//! The error type of the library.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

use crate::LockName;

/// A value or an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`], for programs to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock name is empty, too long, or does not fit the configured key layout; or a set has no name or too many.
    InvalidName,
    /// A URL, an option or a ttl is invalid; nothing was sent.
    InvalidConfig,
    /// The backend, or this build of the library, does not support the operation.
    Unsupported,
    /// The store did not answer, or answered that it cannot serve now. A retry may succeed. What the call had started
    /// is undone, if necessary in the background, within the bounds in `docs/guarantees.md` of the repository.
    Unavailable,
    /// The store refused: wrong password, missing permission.
    Denied,
    /// The hold ended without a release: its deadline passed, or the server reported the loss.
    Lost,
    /// The client was closed, or the runtime that it ran on has ended.
    Closed,
    /// The store contains data that this library never writes, or violated its own protocol.
    Unexpected,
}

impl ErrorKind {
    /// Returns whether a hold ended without a release.
    pub const fn is_lost(self) -> bool {
        matches!(self, Self::Lost)
    }

    /// Returns whether the client was closed.
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Closed)
    }

    /// Returns the kind in snake case, as metrics show it.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::InvalidName => "invalid_name",
            Self::InvalidConfig => "invalid_config",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Lost => "lost",
            Self::Closed => "closed",
            Self::Unexpected => "unexpected",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::InvalidName => "invalid name",
            Self::InvalidConfig => "invalid configuration",
            Self::Unsupported => "not supported",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Lost => "lock lost",
            Self::Closed => "client closed",
            Self::Unexpected => "unexpected state",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// An error: its [kind](ErrorKind), the failed operation, the lock concerned, and the cause.
///
/// Contention and timeouts are values (`None`), not errors. `Display` prints one line without the cause, which
/// [`source`](StdError::source) returns; `{:#}` adds the chain of causes. Neither of them, nor `Debug`, prints a
/// secret. Cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    lock: Option<LockName>,
    message: Option<Cow<'static, str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error; `operation` is a verb phrase such as `"open session"`.
    pub fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Arc::new(Inner { kind, operation, lock: None, message: None, source: None }))
    }

    /// Adds the lock concerned.
    #[must_use]
    pub fn with_lock(self, name: &LockName) -> Self {
        self.map(|inner| inner.lock = Some(name.clone()))
    }

    /// Adds a message, which must not contain a secret.
    #[must_use]
    pub fn with_message(self, message: impl Into<Cow<'static, str>>) -> Self {
        self.map(|inner| inner.message = Some(message.into()))
    }

    /// Adds the cause, which must not print a secret.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.map(|inner| inner.source = Some(Arc::new(source)))
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// Returns the lock concerned.
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// Returns whether the same call may succeed later without any change to configuration or permissions.
    pub fn is_temporary(&self) -> bool {
        self.0.kind == ErrorKind::Unavailable
    }

    /// Returns whether the hold ended without a release.
    pub fn is_lost(&self) -> bool {
        self.0.kind.is_lost()
    }

    /// Returns whether the client was closed.
    pub fn is_closed(&self) -> bool {
        self.0.kind.is_closed()
    }

    fn map(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.operation)?;
        if let Some(lock) = &self.0.lock {
            write!(f, " {lock:?}")?;
        }
        write!(f, ": {}", self.0.kind)?;
        if let Some(message) = &self.0.message {
            write!(f, ": {message}")?;
        }
        let mut cause = self.source().filter(|_| f.alternate());
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, operation, lock, message, source } = &*self.0;
        f.debug_struct("Error")
            .field("kind", kind)
            .field("operation", operation)
            .field("lock", lock)
            .field("message", message)
            .field("source", source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_and_text_say_the_same_of_each_kind() {
        for (kind, label, text) in [
            (ErrorKind::InvalidName, "invalid_name", "invalid name"),
            (ErrorKind::InvalidConfig, "invalid_config", "invalid configuration"),
            (ErrorKind::Unsupported, "unsupported", "not supported"),
            (ErrorKind::Unavailable, "unavailable", "unavailable"),
            (ErrorKind::Denied, "denied", "denied"),
            (ErrorKind::Lost, "lost", "lock lost"),
            (ErrorKind::Closed, "closed", "client closed"),
            (ErrorKind::Unexpected, "unexpected", "unexpected state"),
        ] {
            assert_eq!((kind.label(), &*kind.to_string()), (label, text));
        }
    }

    #[test]
    fn display_is_one_line_and_the_alternate_form_adds_the_causes() {
        let name = LockName::new("a\nb").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "acquire")
            .with_lock(&name)
            .with_message("no answer within 5s")
            .with_source(
                Error::new(ErrorKind::Denied, "connect").with_source(std::io::Error::other("EPERM")),
            );
        let line = r#"acquire "a\nb": unavailable: no answer within 5s"#;
        assert_eq!(error.to_string(), line);
        assert_eq!(format!("{error:#}"), format!("{line}: connect: denied: EPERM"));
        assert!(error.is_temporary());
        assert_eq!(error.lock(), Some(&name));
        assert!(error.source().is_some());
    }
}
