//! The one error type of the library.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

use crate::LockName;

/// What `lockkit` answers: a value or an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock name is empty, too long, or cannot be carried by the configured key layout.
    InvalidName,
    /// A URL, an option or a ttl that makes no sense; nothing was sent.
    InvalidConfig,
    /// The backend, or this build of the library, cannot do that.
    Unsupported,
    /// The store did not answer, or answered that it cannot serve now. What the call had started is undone, or is
    /// being undone in the background within the bounds in `docs/guarantees.md`. Trying again may help.
    Unavailable,
    /// The store refuses: wrong password, missing permission.
    Denied,
    /// The hold has ended without a release: its deadline passed, or the server said so.
    Lost,
    /// The client was closed, or the runtime that it ran on has ended.
    Closed,
    /// The store holds something that this library would never write, or broke its own protocol.
    Unexpected,
}

impl ErrorKind {
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

/// An error: its [kind](ErrorKind), the operation that failed, the lock it was about, and the cause.
///
/// Contention and timeouts are no errors but values (`None`). `Display` is one line without the cause, which
/// [`source`](StdError::source) returns; `{:#}` adds the cause and its causes. None of them, nor `Debug`, ever holds a
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
    /// An error of this kind; `operation` is a verb phrase such as `"open session"`.
    pub fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Arc::new(Inner { kind, operation, lock: None, message: None, source: None }))
    }

    /// The same error about this lock.
    #[must_use]
    pub fn with_lock(self, name: &LockName) -> Self {
        self.map(|inner| inner.lock = Some(name.clone()))
    }

    /// The same error with a sentence that says more; it must not hold a secret.
    #[must_use]
    pub fn with_message(self, message: impl Into<Cow<'static, str>>) -> Self {
        self.map(|inner| inner.message = Some(message.into()))
    }

    /// The same error with its cause; what the cause prints must not hold a secret.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.map(|inner| inner.source = Some(Arc::new(source)))
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What was being done.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The lock it was about.
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        self.0.kind == ErrorKind::Unavailable
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
        write!(f, ": {}", self.0.kind.text())?;
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
    fn one_line_names_operation_lock_and_kind_and_the_alternate_form_the_causes() {
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
