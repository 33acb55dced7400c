//! Clients that differ from others in whom they trust and in what they may do.

use anyhow::{Result, bail};
use lockkit_core::LockName;

use crate::Hook;

/// A client that differs from others in whom it trusts, or in what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Encrypted, to a server that shows this certificate.
    Tls(Shown),
    /// With this secret in its configuration, as a password is one.
    Secret {
        /// The secret: plain ASCII, not to be found in anything that is told.
        text: &'static str,
        /// Whether the server accepts it.
        right: bool,
    },
    /// May lock everything but this.
    AllBut(LockName),
}

/// What a server shows to a client that speaks TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// What the client can trust.
    Trusted,
    /// A certificate of an authority that the client does not know.
    OfUnknownAuthority,
    /// A certificate for another server.
    WithWrongName,
    /// A certificate that is out of date.
    Expired,
}

impl Access {
    /// The hook that this needs.
    pub fn hook(&self) -> Hook {
        match self {
            Self::Tls(_) => Hook::Tls,
            Self::Secret { .. } => Hook::Secret,
            Self::AllBut(_) => Hook::DenyLock,
        }
    }

    /// The answer of a store that has no such hook.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn unsupported<T>(&self) -> Result<T> {
        bail!("the harness declares {:?}, but its store has no such client", self.hook())
    }
}
